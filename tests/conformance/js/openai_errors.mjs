// Cases of the npm package `openai`: every error that can be provoked is the package's own class.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { WHOLE, chat, image, raised } from "./openai_talk.mjs";
import { COLD, LONG, POISON, crowded, drained } from "./strict.mjs";

const { APIError, BadRequestError, InternalServerError, RateLimitError } = OpenAI;

// The error of a call that does not answer in pieces.
async function refused(call, kind, status, code) {
  const error = await call.then(() => null, (caught) => caught);
  assert.ok(error instanceof kind, `${error?.constructor?.name}: ${error?.message}`);
  assert.deepEqual([error.status, error.code], [status, code]);
  return error;
}

const withKey = (talk, apiKey) => ({ ...talk, api: talk.api.withOptions({ apiKey }) });

export const errorCases = [
  {
    name: "an invalid value",
    run: (talk) => raised(talk, BadRequestError, "invalid_value", { temperature: 3 }),
  },
  {
    name: "a prompt that is too long",
    run: (talk) =>
      raised(talk, BadRequestError, "context_length_exceeded", {
        messages: [{ role: "user", content: "word ".repeat(3000) }],
      }),
  },
  {
    name: "a capability that the model lacks",
    run: (talk) =>
      raised(talk, BadRequestError, "unsupported_capability", {
        messages: [{ role: "user", content: [image(talk, 0)] }],
      }),
  },
  { name: "a template that refuses", run: (talk) => raised(talk, BadRequestError, "template_error", { model: "refusing" }) },
  { name: "an unknown model", run: (talk) => raised(talk, OpenAI.NotFoundError, "model_not_found", { model: "nobody" }) },
  {
    name: "a model that does not fit",
    stage: "tight",
    run: (talk) => raised(talk, InternalServerError, "insufficient_memory", {}),
  },
  {
    name: "no key",
    stage: "strict",
    run: (talk) =>
      raised(withKey(talk, "nonsense"), OpenAI.AuthenticationError, "invalid_api_key"),
  },
  {
    name: "a deadline, and an error in a stream",
    stage: "hurried",
    run: (talk) => raised(talk, APIError, "request_timeout", { max_tokens: LONG }),
  },
  {
    name: "an unknown route, method or media type",
    modes: WHOLE,
    run: async (talk) => {
      await refused(talk.api.get("/nowhere"), OpenAI.NotFoundError, 404, "unknown_url");
      await refused(talk.api.get("/chat/completions"), APIError, 405, "method_not_allowed");
      const text = { headers: { "content-type": "text/plain" } };
      await raised(talk, APIError, "unsupported_media_type", {}, text);
    },
  },
  {
    name: "a body that is too large",
    modes: WHOLE,
    run: async (talk) => {
      const messages = [{ role: "user", content: "x".repeat(11 * 2 ** 20) }];
      assert.equal((await raised(talk, APIError, "request_too_large", { messages })).status, 413);
    },
  },
  {
    name: "what is not implemented",
    modes: WHOLE,
    run: (talk) => refused(talk.api.get(`${talk.url}/puna/v1/keys`), InternalServerError, 501, "not_supported"),
  },
  {
    name: "a scope that the key lacks",
    modes: WHOLE,
    stage: "strict",
    run: (talk) =>
      refused(talk.api.get(`${talk.url}/puna/v1/keys`), OpenAI.PermissionDeniedError, 403, "permission_denied"),
  },
  {
    name: "a quota that is used up",
    stage: "strict",
    run: async (talk) => {
      const limited = withKey(talk, talk.facts.stages.strict.limited_key);
      await chat(limited, { max_tokens: 1 }).catch((error) => assert.ok(error instanceof RateLimitError, error));
      const error = await raised(limited, RateLimitError, "rate_limit_exceeded", {});
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
    },
  },
  {
    name: "every place taken",
    stage: "strict",
    run: async (talk) => {
      const error = await crowded(talk, () => raised(talk, RateLimitError, "queue_full", {}));
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
    },
  },
  {
    name: "a request that stops runners",
    stage: "strict",
    run: async (talk) => {
      const body = { model: "victim-openai", seed: POISON };
      const error = await raised(talk, InternalServerError, "request_quarantined", body);
      assert.deepEqual([error.status, error.headers.get("x-should-retry")], [500, "false"]);
    },
  },
  {
    name: "no replica to be had",
    stage: "strict",
    run: async (talk) => {
      const error = await drained(talk, () => raised(talk, InternalServerError, "model_unavailable", { model: COLD }));
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
    },
  },
];

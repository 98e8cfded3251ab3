// Cases of the npm package `openai`; their names are those of the table in Python.
import assert from "node:assert/strict";
import OpenAI from "openai";

const QUESTION = "What is Puna?";
const SCHEMA = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, size: { enum: [1, 2, 3] } },
  required: ["name", "size"],
  additionalProperties: false,
};
const WHOLE = ["whole"];

// One answer, put together if it came in pieces.
async function chat(talk, body = {}, options = {}) {
  const asked = { model: "demo", temperature: 0, messages: [{ role: "user", content: QUESTION }], ...body };
  const found = { text: "", reasoning: "", calls: [], ids: [], reason: null, entries: [], usage: null, choices: new Set() };
  const add = (message) => {
    found.text += message.content ?? "";
    found.reasoning += message.reasoning_content ?? "";
    (message.tool_calls ?? []).forEach((call, position) => {
      const place = call.index ?? position;
      if (place === found.calls.length) {
        found.calls.push([call.function.name, ""]);
        found.ids.push(call.id);
      }
      found.calls[place][1] += call.function.arguments ?? "";
    });
  };
  if (!talk.stream) {
    const whole = await talk.api.chat.completions.create(asked, options);
    for (const choice of whole.choices) {
      found.choices.add(choice.index);
      if (choice.index === 0) add(choice.message);
      found.reason = choice.finish_reason;
      found.entries.push(...(choice.logprobs?.content ?? []));
    }
    return { ...found, usage: whole.usage };
  }
  const stream = await talk.api.chat.completions.create(
    { ...asked, stream: true, stream_options: { include_usage: true } },
    options,
  );
  for await (const chunk of stream) {
    found.usage = chunk.usage ?? found.usage;
    for (const choice of chunk.choices) {
      found.choices.add(choice.index);
      if (choice.index === 0) add(choice.delta);
      found.reason = choice.finish_reason ?? found.reason;
      found.entries.push(...(choice.logprobs?.content ?? []));
    }
  }
  return found;
}

async function raised(talk, kind, code, body, options) {
  let error = null;
  try {
    await chat(talk, { max_tokens: 4, ...body }, options);
  } catch (caught) {
    error = caught;
  }
  assert.ok(error instanceof kind, `${error?.constructor?.name}: ${error?.message}`);
  assert.equal(error.code, code);
  return error;
}

const calls = (found) => found.calls.map(([name, text]) => [name, JSON.parse(text)]);
const taught = (talk, name) => talk.facts.lessons[name];
const image = (talk, number) => ({
  type: "image_url",
  image_url: { url: `data:image/png;base64,${talk.facts.images[number]}` },
});

export const openaiCases = [
  { name: "answer", run: async (talk) => assert.equal((await chat(talk)).text, talk.facts.answers[QUESTION]) },
  {
    name: "developer and system messages",
    run: async (talk) => {
      for (const role of ["system", "developer"]) {
        const messages = [{ role, content: "You are a pirate." }, { role: "user", content: "Hello!" }];
        assert.equal((await chat(talk, { messages })).text, taught(talk, "pirate-hello").content);
      }
    },
  },
  {
    name: "usage",
    run: async (talk) => {
      const { usage } = await chat(talk);
      assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    },
  },
  {
    name: "cached tokens",
    run: async (talk) => {
      const messages = [{ role: "user", content: "Name the planets." }];
      await chat(talk, { messages, max_tokens: 1 });
      assert.ok((await chat(talk, { messages, max_tokens: 1 })).usage.prompt_tokens_details.cached_tokens > 0);
    },
  },
  {
    name: "max_tokens and max_completion_tokens",
    run: async (talk) => {
      const found = await chat(talk, { max_tokens: 9, max_completion_tokens: 4 });
      assert.deepEqual([found.reason, found.usage.completion_tokens], ["length", 4]);
    },
  },
  {
    name: "stop",
    run: async (talk) =>
      assert.equal((await chat(talk, { stop: ["endpoint"] })).text, talk.facts.answers[QUESTION].split("endpoint")[0]),
  },
  {
    name: "temperature, top_p and seed",
    run: async (talk) => {
      const drawn = { model: "plain", temperature: 1.5, top_p: 0.95, seed: 7, max_tokens: 20 };
      assert.equal((await chat(talk, drawn)).text, (await chat(talk, drawn)).text);
    },
  },
  {
    name: "n choices",
    run: async (talk) => assert.equal((await chat(talk, { n: 3, max_tokens: 4 })).choices.size, 3),
  },
  {
    name: "logprobs",
    run: async (talk) => {
      const found = await chat(talk, { logprobs: true, top_logprobs: 5 });
      assert.equal(found.entries.length, found.usage.completion_tokens - 1);
      assert.ok(found.entries.every((entry) => entry.top_logprobs.length === 5));
    },
  },
  {
    name: "response_format json_schema",
    run: async (talk) => {
      const response_format = { type: "json_schema", json_schema: { name: "thing", schema: SCHEMA, strict: true } };
      assert.deepEqual(Object.keys(JSON.parse((await chat(talk, { response_format })).text)).sort(), ["name", "size"]);
    },
  },
  {
    name: "tools",
    run: async (talk) => {
      const lesson = taught(talk, "weather-paris");
      const found = await chat(talk, { messages: lesson.messages, tools: lesson.tools });
      assert.deepEqual(calls(found), lesson.tool_calls.map((call) => [call.name, call.arguments]));
      assert.equal(found.reason, "tool_calls");
    },
  },
  {
    name: "parallel tool calls",
    run: async (talk) => {
      const { messages, tools } = taught(talk, "weather-parallel");
      assert.ok((await chat(talk, { messages, tools })).calls.length > 1);
      assert.equal((await chat(talk, { messages, tools, parallel_tool_calls: false })).calls.length, 1);
    },
  },
  {
    name: "tool_choice",
    run: async (talk) => {
      const body = { tools: taught(talk, "weather-paris-two-tools").tools, parallel_tool_calls: false, max_tokens: 400 };
      assert.equal((await chat(talk, { ...body, tool_choice: "none" })).calls.length, 0);
      const tool_choice = { type: "function", function: { name: "add" } };
      assert.deepEqual((await chat(talk, { ...body, tool_choice })).calls.map(([name]) => name), ["add"]);
    },
  },
  {
    name: "reasoning",
    run: async (talk) => {
      const lesson = taught(talk, "multiply");
      const found = await chat(talk, { messages: lesson.messages });
      assert.deepEqual([found.reasoning.trim(), found.text.trim()], [lesson.reasoning, lesson.content]);
    },
  },
  {
    name: "reasoning_effort",
    run: async (talk) =>
      assert.equal((await chat(talk, { messages: taught(talk, "multiply").messages, reasoning_effort: "none" })).reasoning, ""),
  },
  {
    name: "images",
    run: async (talk) => {
      const see = async (number) => {
        const content = [{ type: "text", text: "What do you see?" }, image(talk, number)];
        return (await chat(talk, { model: "eyes", messages: [{ role: "user", content }], max_tokens: 8 })).text;
      };
      assert.equal(await see(0), await see(0));
      assert.notEqual(await see(0), await see(1));
    },
  },
  {
    name: "text",
    run: async (talk) => {
      const body = { model: "demo", prompt: "Puna is", temperature: 0, max_tokens: 8 };
      let text = "";
      if (talk.stream) {
        for await (const chunk of await talk.api.completions.create({ ...body, stream: true })) {
          text += chunk.choices[0]?.text ?? "";
        }
      } else text = (await talk.api.completions.create(body)).choices[0].text;
      assert.ok(text.length > 0);
    },
  },
  {
    name: "response",
    run: async (talk) => {
      const body = { model: "demo", input: QUESTION, temperature: 0 };
      let found = null;
      if (talk.stream) {
        for await (const event of await talk.api.responses.create({ ...body, stream: true })) {
          if (event.type === "response.completed") found = event.response;
        }
      } else found = await talk.api.responses.create(body);
      assert.equal(found.status, "completed");
      const text = found.output.flatMap((item) => item.content ?? []).map((part) => part.text ?? "").join("");
      assert.equal(text, talk.facts.answers[QUESTION]);
    },
  },
  {
    name: "embeddings",
    modes: WHOLE,
    run: async (talk) => {
      const found = await talk.api.embeddings.create({ model: "embed_mean", input: ["one", "two"] });
      assert.equal(found.data.length, 2);
      const length = found.data[0].embedding.reduce((sum, number) => sum + number * number, 0);
      assert.ok(Math.abs(length - 1) < 1e-4, String(length));
    },
  },
  {
    name: "models",
    modes: WHOLE,
    run: async (talk) => {
      const ids = [];
      for await (const model of talk.api.models.list()) ids.push(model.id);
      assert.ok(ids.includes("demo"));
      assert.equal((await talk.api.models.retrieve("demo")).id, "demo");
    },
  },
  {
    name: "E1 invalid value",
    run: (talk) => raised(talk, OpenAI.BadRequestError, "invalid_value", { temperature: 3 }),
  },
  {
    name: "E2 too long",
    run: (talk) =>
      raised(talk, OpenAI.BadRequestError, "context_length_exceeded", {
        messages: [{ role: "user", content: "word ".repeat(3000) }],
      }),
  },
  {
    name: "E3 capability",
    run: (talk) =>
      raised(talk, OpenAI.BadRequestError, "unsupported_capability", {
        messages: [{ role: "user", content: [image(talk, 0)] }],
      }),
  },
  { name: "E4 template", run: (talk) => raised(talk, OpenAI.BadRequestError, "template_error", { model: "refusing" }) },
  { name: "E7 unknown model", run: (talk) => raised(talk, OpenAI.NotFoundError, "model_not_found", { model: "nobody" }) },
  {
    name: "E13 does not fit",
    stage: "tight",
    run: (talk) => raised(talk, OpenAI.InternalServerError, "insufficient_memory", {}),
  },
  {
    name: "E5 no key",
    stage: "strict",
    run: (talk) =>
      raised({ ...talk, api: talk.api.withOptions({ apiKey: "nonsense" }) }, OpenAI.AuthenticationError, "invalid_api_key"),
  },
  {
    name: "E16 deadline, and an error in a stream",
    stage: "strict",
    run: (talk) => raised(talk, OpenAI.APIError, "request_timeout", { max_tokens: 400 }),
  },
];

// Cases of the npm package `ollama`: errors, in Ollama's words.
import { Ollama } from "ollama";
import { WHOLE, chat, generate, raised } from "./ollama_talk.mjs";
import { COLD, LONG, POISON, crowded, drained } from "./strict.mjs";

export const errorCases = [
  {
    name: "an invalid value",
    run: (talk) => raised(400, 'option "num_ctx" must be', () => chat(talk, { options: { num_ctx: 1 } })),
  },
  {
    name: "an unknown model",
    run: (talk) => raised(404, "model 'nobody' not found", () => chat(talk, { model: "nobody" })),
  },
  {
    name: "a model that does not fit",
    stage: "tight",
    run: (talk) => raised(500, "model requires more system memory (", () => chat(talk)),
  },
  {
    name: "a deadline, and an error in a stream",
    stage: "hurried",
    run: (talk) => raised(talk.stream ? null : 504, "request timed out", () => chat(talk, { options: { num_predict: LONG } })),
  },
  {
    name: "a capability that the model lacks",
    run: async (talk) => {
      const { tools } = talk.facts.lessons["weather-paris"];
      const suffix = { model: "plain", prompt: "x", suffix: "y" };
      const messages = [{ role: "user", content: "x", images: [talk.facts.images[0]] }];
      await raised(400, '"embed_mean" does not support chat', () => chat(talk, { model: "embed_mean" }));
      await raised(400, '"plain" does not support thinking', () => chat(talk, { model: "plain", think: true }));
      await raised(400, '"plain" does not support tools', () => chat(talk, { model: "plain", tools }));
      await raised(400, '"plain" does not support insert', () => generate(talk, suffix));
      await raised(400, "does not support vision", () => chat(talk, { messages }));
      const embed = () => talk.api.embed({ model: "demo", input: "x" });
      await raised(501, "this model does not support embeddings", embed);
    },
  },
  { name: "a template that refuses", run: (talk) => raised(400, "not today", () => chat(talk, { model: "refusing" })) },
  {
    name: "what is not implemented",
    modes: WHOLE,
    run: async (talk) => {
      await raised(501, "", () => talk.api.push({ model: "demo" }));
      await raised(501, "", () => talk.api.create({ model: "small", from: "demo", quantize: "q4_0" }));
    },
  },
  {
    name: "no key",
    stage: "strict",
    run: async (talk) => {
      const api = new Ollama({ host: talk.url, headers: { Authorization: "Bearer nonsense" } });
      await raised(401, "unauthorized", () => api.list());
      await raised(401, "unauthorized", () => chat({ ...talk, api }));
    },
  },
  {
    name: "every place taken",
    stage: "strict",
    run: (talk) =>
      crowded(talk, () =>
        raised(503, "server busy, please try again.  maximum pending requests exceeded", () => chat(talk)),
      ),
  },
  {
    name: "a request that stops runners",
    stage: "strict",
    run: (talk) =>
      raised(500, "stopped two model runners", () => chat(talk, { model: "victim-ollama", options: { seed: POISON } })),
  },
  {
    name: "no replica to be had",
    stage: "strict",
    run: async (talk) => {
      await drained(talk, () => raised(503, "", () => chat(talk, { model: COLD })));
    },
  },
];

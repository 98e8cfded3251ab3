// Cases of the npm package `ollama`; their names are those of the table in Python.
import assert from "node:assert/strict";

const QUESTION = "What is Puna?";
const GREEDY = { temperature: 0 };
const SCHEMA = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, size: { enum: [1, 2, 3] } },
  required: ["name", "size"],
  additionalProperties: false,
};
const WHOLE = ["whole"];

async function joined(talk, answer, isChat) {
  const parts = [];
  if (talk.stream) for await (const part of await answer) parts.push(part);
  else parts.push(await answer);
  const holders = isChat ? parts.map((part) => part.message) : parts;
  return {
    text: holders.map((holder) => (isChat ? holder.content : holder.response) ?? "").join(""),
    thinking: holders.map((holder) => holder.thinking ?? "").join(""),
    calls: holders.flatMap((holder) => holder.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    last: parts.at(-1),
  };
}

const chat = (talk, body = {}) => {
  const messages = [{ role: "user", content: QUESTION }];
  return joined(talk, talk.api.chat({ model: "demo", messages, options: GREEDY, ...body, stream: talk.stream }), true);
};
const generate = (talk, body = {}) =>
  joined(talk, talk.api.generate({ model: "demo", prompt: QUESTION, options: GREEDY, ...body, stream: talk.stream }), false);

async function raised(status, text, run) {
  let error = null;
  try {
    await run();
  } catch (caught) {
    error = caught;
  }
  assert.ok(error, "nothing was raised");
  assert.ok(error.message.includes(text), error.message);
  if (status !== null) assert.equal(error.status_code, status);
}

export const ollamaCases = [
  {
    name: "chat",
    run: async (talk) => {
      const found = await chat(talk);
      assert.deepEqual([found.text, found.last.done_reason], [talk.facts.answers[QUESTION], "stop"]);
      assert.ok(found.last.total_duration >= found.last.eval_duration);
    },
  },
  {
    name: "generate",
    run: async (talk) => {
      const found = await generate(talk);
      assert.equal(found.text, talk.facts.answers[QUESTION]);
      assert.ok(found.last.context.length > 10);
    },
  },
  {
    name: "suffix",
    run: async (talk) => {
      const body = { model: "coder", prompt: "def add(a, b):", options: { temperature: 0, num_predict: 8 } };
      const one = await generate(talk, { ...body, suffix: "\nprint(add(1, 2))" });
      assert.notEqual(one.text, (await generate(talk, { ...body, suffix: "x".repeat(40) })).text);
    },
  },
  {
    name: "options",
    run: async (talk) => {
      const found = await chat(talk, { options: { temperature: 0, num_predict: 4 } });
      assert.deepEqual([found.last.done_reason, found.last.eval_count], ["length", 4]);
    },
  },
  {
    name: "think",
    run: async (talk) => {
      const { messages, reasoning } = talk.facts.lessons.multiply;
      assert.equal((await chat(talk, { messages, think: true })).thinking.trim(), reasoning);
      assert.equal((await chat(talk, { messages, think: false })).thinking, "");
    },
  },
  {
    name: "format",
    run: async (talk) =>
      assert.deepEqual(Object.keys(JSON.parse((await chat(talk, { format: SCHEMA })).text)).sort(), ["name", "size"]),
  },
  {
    name: "tools",
    run: async (talk) => {
      const lesson = talk.facts.lessons["weather-parallel"];
      const found = await chat(talk, { messages: lesson.messages, tools: lesson.tools });
      assert.deepEqual(found.calls, lesson.tool_calls.map((call) => [call.name, call.arguments]));
    },
  },
  {
    name: "images",
    run: async (talk) => {
      const see = async (number) => {
        const messages = [{ role: "user", content: "What do you see?", images: [talk.facts.images[number]] }];
        return (await chat(talk, { model: "eyes", messages, options: { temperature: 0, num_predict: 8 } })).text;
      };
      assert.equal(await see(0), await see(0));
      assert.notEqual(await see(0), await see(1));
    },
  },
  {
    name: "embed",
    modes: WHOLE,
    run: async (talk) =>
      assert.equal((await talk.api.embed({ model: "embed_mean", input: ["one", "two"] })).embeddings.length, 2),
  },
  {
    name: "list, show, ps",
    modes: WHOLE,
    run: async (talk) => {
      assert.ok((await talk.api.list()).models.some((model) => model.model === "demo:latest"));
      assert.ok((await talk.api.show({ model: "eyes" })).capabilities.includes("vision"));
      assert.ok(Array.isArray((await talk.api.ps()).models));
    },
  },
  {
    name: "copy and delete",
    modes: WHOLE,
    run: async (talk) => {
      await talk.api.copy({ source: "demo", destination: "copy-node" });
      assert.equal((await talk.api.delete({ model: "copy-node" })).status, "success");
    },
  },
  {
    name: "E1 invalid value",
    run: (talk) => raised(400, 'option "num_ctx" must be', () => chat(talk, { options: { num_ctx: 1 } })),
  },
  {
    name: "E7 unknown model",
    run: (talk) => raised(404, "model 'nobody' not found", () => chat(talk, { model: "nobody" })),
  },
  {
    name: "E13 does not fit",
    stage: "tight",
    run: (talk) => raised(500, "model requires more system memory (", () => chat(talk)),
  },
  {
    name: "E16 deadline, and an error in a stream",
    stage: "strict",
    run: (talk) => raised(talk.stream ? null : 504, "request timed out", () => chat(talk, { options: { num_predict: 400 } })),
  },
];

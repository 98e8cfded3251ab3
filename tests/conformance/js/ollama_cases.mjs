// Cases of the npm package `ollama`; their names are those of the table in Python.
import assert from "node:assert/strict";
import { QUESTION, SCHEMA, WHOLE, chat, generate } from "./ollama_talk.mjs";

const SHORT = { temperature: 0, num_predict: 6 };

export const featureCases = [
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
    run: async (talk) => {
      assert.equal((await talk.api.embed({ model: "embed_mean", input: ["one", "two"] })).embeddings.length, 2);
      const [cut] = (await talk.api.embed({ model: "embed_mean", input: "one", dimensions: 8 })).embeddings;
      assert.equal(cut.length, 8);
      assert.equal((await talk.api.embeddings({ model: "embed_mean", prompt: "one" })).embedding.length > 8, true);
    },
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
    name: "roles",
    run: async (talk) => {
      const pirate = talk.facts.lessons["pirate-hello"].content;
      const messages = [{ role: "system", content: "You are a pirate." }, { role: "user", content: "Hello!" }];
      assert.equal((await chat(talk, { messages })).text, pirate);
      assert.equal((await generate(talk, { prompt: "Hello!", system: "You are a pirate." })).text, pirate);
      const lesson = talk.facts.lessons["name-grace"];
      assert.equal((await chat(talk, { messages: lesson.messages })).text, lesson.content);
    },
  },
  {
    name: "raw",
    run: async (talk) => {
      const found = await generate(talk, { prompt: "Puna is", raw: true, options: SHORT });
      assert.equal(found.last.done_reason, "length");
      assert.ok(!found.last.context?.length);
    },
  },
  {
    name: "template",
    run: async (talk) => {
      const plain = await generate(talk, { prompt: "Puna is", raw: true, options: SHORT });
      const template = "{{ messages[0].content }}";
      assert.equal((await generate(talk, { prompt: "Puna is", template, options: SHORT })).text, plain.text);
    },
  },
  {
    name: "keep_alive, load and unload",
    modes: WHOLE,
    run: async (talk) => {
      const load = (keep_alive) => talk.api.generate({ model: "plain", prompt: "", keep_alive });
      const loaded = await load("5m");
      assert.deepEqual([loaded.done_reason, loaded.response], ["load", ""]);
      assert.ok((await talk.api.ps()).models.some((model) => model.model === "plain:latest"));
      assert.equal((await load(0)).done_reason, "unload");
      assert.equal((await talk.api.chat({ model: "demo", messages: [] })).done_reason, "load");
    },
  },
  {
    name: "logprobs",
    run: async (talk) => {
      const { entries } = await chat(talk, { logprobs: true, top_logprobs: 3, options: SHORT });
      assert.equal(entries.length, 6);
      assert.ok(entries.every((entry) => entry.top_logprobs.length === 3));
    },
  },
  {
    name: "create",
    run: async (talk) => {
      const asked = { model: "made-node", from: "demo", system: "You are a pirate.", stream: talk.stream };
      const lines = [];
      if (talk.stream) for await (const line of await talk.api.create(asked)) lines.push(line.status);
      else lines.push((await talk.api.create(asked)).status);
      try {
        assert.equal(lines.at(-1), "success");
        const messages = [{ role: "user", content: "Hello!" }];
        const found = await chat(talk, { model: "made-node", messages });
        assert.equal(found.text, talk.facts.lessons["pirate-hello"].content);
      } finally {
        await talk.api.delete({ model: "made-node" });
      }
    },
  },
];

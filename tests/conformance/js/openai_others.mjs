// Cases of the npm package `openai` beside chat: completions, responses, embeddings, rerank, models.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { QUESTION, SCHEMA, WHOLE, taught } from "./openai_talk.mjs";
import { ask } from "./strict.mjs";

// POST /v1/completions: the choices in the order of their indices.
async function complete(talk, body) {
  const full = { model: "demo", temperature: 0, max_tokens: 12, ...body };
  if (!talk.stream) {
    const { choices } = await talk.api.completions.create(full);
    return choices
      .sort((one, other) => one.index - other.index)
      .map((choice) => ({ text: choice.text, reason: choice.finish_reason, tokens: choice.logprobs?.tokens ?? [] }));
  }
  const found = [];
  for await (const chunk of await talk.api.completions.create({ ...full, stream: true })) {
    for (const choice of chunk.choices) {
      const into = (found[choice.index] ??= { text: "", reason: null, tokens: [] });
      into.text += choice.text;
      into.reason = choice.finish_reason ?? into.reason;
      into.tokens.push(...(choice.logprobs?.tokens ?? []));
    }
  }
  return found;
}

// POST /v1/responses: the whole response, or the one of the last event.
async function respond(talk, body) {
  const full = { model: "demo", temperature: 0, ...body };
  if (!talk.stream) return talk.api.responses.create(full);
  let last = null;
  for await (const event of await talk.api.responses.create({ ...full, stream: true })) last = event;
  assert.ok(["response.completed", "response.incomplete"].includes(last.type), last.type);
  return last.response;
}

const textOf = (response) =>
  response.output
    .filter((item) => item.type === "message")
    .flatMap((item) => item.content)
    .map((part) => part.text)
    .join("");
const kinds = (response) => response.output.map((item) => item.type);
const length = (vector) => vector.reduce((sum, number) => sum + number * number, 0);
const vectors = async (talk, body) => (await talk.api.embeddings.create({ model: "embed_mean", ...body })).data;

export const otherCases = [
  {
    name: "text",
    run: async (talk) => {
      const [first] = await complete(talk, { prompt: "Puna is" });
      assert.ok(first.text.length > 0);
      assert.ok(["length", "stop"].includes(first.reason));
      assert.deepEqual(await complete(talk, { prompt: "Puna is" }), [first]);
    },
  },
  {
    name: "lists of prompts",
    run: async (talk) => {
      const alone = [];
      for (const prompt of ["Puna is", "A slot is"]) alone.push((await complete(talk, { prompt }))[0].text);
      const found = await complete(talk, { prompt: ["Puna is", "A slot is"], n: 2, best_of: 2 });
      assert.deepEqual(found.map((one) => one.text), [alone[0], alone[0], alone[1], alone[1]]);
    },
  },
  {
    name: "token ids as prompts",
    run: async (talk) => {
      const { tokens } = await ask(talk, "/puna/v1/tokenize", { model: "demo", text: "Puna is" });
      const [{ text }] = await complete(talk, { prompt: "Puna is" });
      assert.equal((await complete(talk, { prompt: tokens }))[0].text, text);
      assert.deepEqual((await complete(talk, { prompt: [tokens, tokens] })).map((one) => one.text), [text, text]);
    },
  },
  {
    name: "echo",
    run: async (talk) => {
      const [plain] = await complete(talk, { prompt: "Puna is" });
      assert.equal((await complete(talk, { prompt: "Puna is", echo: true }))[0].text, `Puna is${plain.text}`);
    },
  },
  {
    name: "logprobs of completions",
    run: async (talk) => {
      const [found] = await complete(talk, { prompt: "Puna is", logprobs: 2 });
      assert.equal(found.tokens.join(""), found.text);
    },
  },
  {
    name: "suffix",
    run: async (talk) => {
      const body = { model: "coder", prompt: "def add(a, b):", max_tokens: 8 };
      const [one] = await complete(talk, { ...body, suffix: "\nprint(add(1, 2))" });
      const [other] = await complete(talk, { ...body, suffix: "x".repeat(40) });
      assert.notEqual(one.text, other.text);
    },
  },
  {
    name: "response",
    run: async (talk) => {
      const found = await respond(talk, { input: QUESTION });
      assert.deepEqual([found.status, textOf(found)], ["completed", talk.facts.answers[QUESTION]]);
      assert.equal(found.usage.total_tokens, found.usage.input_tokens + found.usage.output_tokens);
    },
  },
  {
    name: "instructions and metadata",
    run: async (talk) => {
      const body = { input: "Hello!", instructions: "You are a pirate.", metadata: { a: "b" } };
      const found = await respond(talk, body);
      assert.equal(textOf(found), taught(talk, "pirate-hello").content);
      assert.deepEqual(found.metadata, { a: "b" });
    },
  },
  {
    name: "tools of responses",
    run: async (talk) => {
      const lesson = taught(talk, "umbrella");
      const tools = lesson.tools.map((tool) => ({ type: "function", ...tool.function }));
      const first = await respond(talk, { input: lesson.messages, tools });
      const call = first.output.find((item) => item.type === "function_call");
      assert.deepEqual([call.name, JSON.parse(call.arguments)], ["get_weather", { city: "Lima" }]);
      const { call_id, name, arguments: text } = call;
      const back = { type: "function_call", call_id, name, arguments: text };
      const result = { type: "function_call_output", call_id, output: "rain" };
      const second = await respond(talk, { input: [...lesson.messages, back, result], tools, max_output_tokens: 40 });
      assert.ok(second.usage.input_tokens > first.usage.input_tokens);
    },
  },
  {
    name: "reasoning items",
    run: async (talk) => {
      const { messages: input } = taught(talk, "multiply");
      assert.deepEqual(kinds(await respond(talk, { input })), ["reasoning", "message"]);
      assert.deepEqual(kinds(await respond(talk, { input, reasoning: { effort: "none" } })), ["message"]);
    },
  },
  {
    name: "text.format",
    run: async (talk) => {
      const text = { format: { type: "json_schema", name: "answer", schema: SCHEMA, strict: true } };
      const found = JSON.parse(textOf(await respond(talk, { input: QUESTION, text })));
      assert.deepEqual(Object.keys(found).sort(), ["name", "size"]);
    },
  },
  {
    name: "max_output_tokens",
    run: async (talk) => {
      const found = await respond(talk, { input: QUESTION, max_output_tokens: 3 });
      assert.deepEqual([found.status, found.incomplete_details.reason], ["incomplete", "max_output_tokens"]);
    },
  },
  {
    name: "events of a response",
    modes: ["stream"],
    run: async (talk) => {
      const events = [];
      const body = { model: "demo", input: QUESTION, stream: true };
      for await (const event of await talk.api.responses.create(body)) events.push(event);
      assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, at) => at));
      const names = events.map((event) => event.type);
      assert.deepEqual(names.slice(0, 2), ["response.created", "response.in_progress"]);
      assert.equal(names.at(-1), "response.completed");
    },
  },
  {
    name: "server-side state",
    modes: WHOLE,
    run: async (talk) => {
      const fields = {
        previous_response_id: "resp_1",
        conversation: "resp_1",
        background: true,
        prompt: { id: "pmpt_1" },
      };
      for (const [field, wanted] of Object.entries(fields)) {
        const asked = talk.api.responses.create({ model: "demo", input: "x", [field]: wanted });
        await assert.rejects(asked, (error) => error instanceof OpenAI.BadRequestError && error.param === field);
      }
      await assert.rejects(talk.api.responses.retrieve("resp_1"), OpenAI.NotFoundError);
    },
  },
  {
    name: "custom tools",
    run: async (talk) => {
      const definition = 'start: "1".."9" "x " FRUIT\nFRUIT: "plum" | "fig"\n';
      const tools = [{ type: "custom", name: "order", format: { type: "grammar", syntax: "lark", definition } }];
      const tool_choice = { type: "custom", name: "order" };
      const first = await respond(talk, { input: QUESTION, tools, tool_choice, parallel_tool_calls: false });
      const { call_id, name, input } = first.output.find((item) => item.type === "custom_tool_call");
      assert.match(input, /^[1-9]x (plum|fig)$/);
      const back = { type: "custom_tool_call", call_id, name, input };
      const result = { type: "custom_tool_call_output", call_id, output: "ordered" };
      const said = [{ role: "user", content: QUESTION }, back, result];
      const second = await respond(talk, { input: said, tools, max_output_tokens: 20 });
      assert.ok(second.usage.input_tokens > first.usage.input_tokens);
    },
  },
  {
    name: "namespaces and hosted tools",
    run: async (talk) => {
      const lesson = taught(talk, "umbrella");
      const inner = lesson.tools.map((tool) => ({ type: "function", ...tool.function }));
      const space = { type: "namespace", name: "earth", description: "Of the planet.", tools: inner };
      const named = [{ type: "function", name: "get_weather" }];
      const found = await respond(talk, {
        input: lesson.messages,
        tools: [space, { type: "web_search" }],
        tool_choice: { type: "allowed_tools", mode: "required", tools: named },
        parallel_tool_calls: false,
      });
      const call = found.output.find((item) => item.type === "function_call");
      assert.deepEqual([call.name, call.namespace], ["get_weather", "earth"]);
    },
  },
  {
    name: "items of other servers",
    run: async (talk) => {
      const action = { type: "search", query: "x" };
      const input = [
        { type: "compaction", encrypted_content: "of another server" },
        { role: "user", content: "Hello!" },
        { type: "web_search_call", id: "ws_1", status: "completed", action },
        { type: "reasoning", id: "rs_1", summary: [], encrypted_content: "of another server" },
        { role: "assistant", content: [{ type: "output_text", text: "Hello.", annotations: [] }] },
        { type: "item_reference", id: "msg_1" },
        { role: "user", content: QUESTION },
      ];
      assert.ok((await respond(talk, { input })).output.length > 0);
    },
  },
  {
    name: "input_tokens and compact",
    modes: WHOLE,
    run: async (talk) => {
      const sent = (path, input) => talk.api.post(path, { body: { model: "demo", input } });
      const { usage } = await respond(talk, { input: QUESTION, max_output_tokens: 1 });
      const count = await sent("/responses/input_tokens", QUESTION);
      assert.deepEqual(count, { object: "response.input_tokens", input_tokens: usage.input_tokens });
      const { output } = await sent("/responses/compact", QUESTION);
      assert.deepEqual(output.map((item) => item.type), ["message", "compaction"]);
      const longer = [...output, { role: "user", content: QUESTION }];
      assert.ok((await sent("/responses/input_tokens", longer)).input_tokens > usage.input_tokens);
    },
  },
  {
    name: "embeddings",
    modes: WHOLE,
    run: async (talk) => {
      const data = await vectors(talk, { input: ["one text", "another text"] });
      assert.deepEqual(data.map((item) => item.index), [0, 1]);
      for (const { embedding } of data) assert.ok(Math.abs(length(embedding) - 1) < 1e-4);
    },
  },
  {
    name: "encoding_format",
    modes: WHOLE,
    run: async (talk) => {
      const [plain] = await vectors(talk, { input: "text", encoding_format: "float" });
      const [coded] = await vectors(talk, { input: "text", encoding_format: "base64" });
      const bytes = Uint8Array.from(Buffer.from(coded.embedding, "base64"));
      const numbers = new Float32Array(bytes.buffer);
      assert.equal(numbers.length, plain.embedding.length);
      plain.embedding.forEach((number, at) => assert.ok(Math.abs(number - numbers[at]) < 1e-6));
    },
  },
  {
    name: "dimensions",
    modes: WHOLE,
    run: async (talk) => {
      const [{ embedding }] = await vectors(talk, { input: "text", dimensions: 8 });
      assert.equal(embedding.length, 8);
      assert.ok(Math.abs(length(embedding) - 1) < 1e-4);
    },
  },
  {
    name: "token ids as inputs",
    modes: WHOLE,
    run: async (talk) => {
      assert.equal((await vectors(talk, { input: [5, 6, 7] })).length, 1);
      assert.equal((await vectors(talk, { input: [[5, 6, 7], [8, 9]] })).length, 2);
    },
  },
  {
    name: "a thousand inputs",
    modes: WHOLE,
    run: async (talk) => {
      const input = Array.from({ length: 1000 }, (_, at) => `text ${at}`);
      assert.equal((await vectors(talk, { input })).length, 1000);
    },
  },
  {
    name: "rerank",
    modes: WHOLE,
    run: async (talk) => {
      const body = { model: "reranker", query: "llama", documents: ["a llama", "a slot", "a GPU"], top_n: 2 };
      for (const path of ["/rerank", `${talk.url}/v2/rerank`, `${talk.url}/rerank`]) {
        const { results } = await talk.api.post(path, { body: { ...body, return_documents: true } });
        const [best, second] = results.map((result) => result.relevance_score);
        assert.equal(results.length, 2);
        assert.ok(1 >= best && best >= second && second >= 0);
        assert.ok(results.every((result) => body.documents.includes(result.document.text)));
      }
    },
  },
  {
    name: "models",
    modes: WHOLE,
    run: async (talk) => {
      const ids = [];
      for await (const model of talk.api.models.list()) ids.push(model.id);
      assert.ok(["demo", "eyes", "embed_mean"].every((id) => ids.includes(id)), ids.join());
      assert.equal((await talk.api.models.retrieve("demo")).id, "demo");
    },
  },
];

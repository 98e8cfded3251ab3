// Cases of the npm package `openai`: chat completions. Their names are those of the table in Python.
import assert from "node:assert/strict";
import { QUESTION, SCHEMA, WHOLE, calls, chat, image, taught } from "./openai_talk.mjs";
import { ask } from "./strict.mjs";

const STREAM = ["stream"];
const asUser = (content) => [{ role: "user", content }];

export const chatCases = [
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
    name: "conversation",
    run: async (talk) => {
      const { messages, content } = taught(talk, "name-ada");
      assert.equal((await chat(talk, { messages })).text, content);
    },
  },
  {
    name: "content parts",
    run: async (talk) => {
      const messages = asUser([{ type: "text", text: QUESTION }]);
      assert.equal((await chat(talk, { messages })).text, talk.facts.answers[QUESTION]);
    },
  },
  {
    name: "continued assistant message",
    run: async (talk) => {
      const whole = talk.facts.answers[QUESTION];
      const begin = whole.split(" machines")[0];
      const messages = [...asUser(QUESTION), { role: "assistant", content: begin }];
      assert.equal(begin + (await chat(talk, { messages })).text, whole);
    },
  },
  {
    name: "usage: last chunk has no choices",
    modes: STREAM,
    run: async (talk) => {
      const body = { model: "demo", messages: asUser(QUESTION), max_tokens: 4, stream: true };
      const read = async (more) => {
        const chunks = [];
        for await (const chunk of await talk.api.chat.completions.create({ ...body, ...more })) chunks.push(chunk);
        return chunks;
      };
      const chunks = await read({ stream_options: { include_usage: true } });
      assert.deepEqual(chunks.map((chunk) => Boolean(chunk.usage)), chunks.map((_, at) => at === chunks.length - 1));
      assert.deepEqual(chunks.at(-1).choices, []);
      assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
      assert.ok((await read({})).every((chunk) => !chunk.usage && chunk.choices.length > 0));
    },
  },
  {
    name: "presence and frequency penalty",
    run: async (talk) => {
      const body = { messages: asUser("Count from 1 to 100."), max_tokens: 40 };
      const penalised = { ...body, frequency_penalty: 2, presence_penalty: 2 };
      assert.notEqual((await chat(talk, penalised)).text, (await chat(talk, body)).text);
    },
  },
  {
    name: "logit_bias",
    run: async (talk) => {
      const first = async (text) => (await ask(talk, "/puna/v1/tokenize", { model: "demo", text })).tokens[0];
      const banned = { [await first(talk.facts.answers[QUESTION])]: -100 };
      assert.ok(!(await chat(talk, { logit_bias: banned })).text.startsWith("Puna"));
      const favoured = { [await first("!")]: 100 };
      assert.equal((await chat(talk, { logit_bias: favoured, max_tokens: 3 })).text, "!!!");
    },
  },
  {
    name: "response_format json_object",
    run: async (talk) => {
      const wanted = { response_format: { type: "json_object" }, reasoning_effort: "none" };
      const found = await chat(talk, { messages: asUser("Describe a banana as JSON."), ...wanted });
      assert.equal(JSON.parse(found.text).name, "banana");
    },
  },
  {
    name: "grammar",
    run: async (talk) => {
      const found = await chat(talk, { grammar: 'root ::= "yes" | "no"', think: false });
      assert.ok(["yes", "no"].includes(found.text), found.text);
    },
  },
  {
    name: "tool results",
    run: async (talk) => {
      const { messages, tools } = taught(talk, "umbrella");
      const first = await chat(talk, { messages, tools });
      const [[name, text]] = first.calls;
      const call = { id: first.ids[0], type: "function", function: { name, arguments: text } };
      const turns = [
        ...messages,
        { role: "assistant", content: null, tool_calls: [call] },
        { role: "tool", tool_call_id: first.ids[0], content: "rain" },
      ];
      const second = await chat(talk, { messages: turns, tools, max_tokens: 50 });
      assert.ok(second.text || second.calls.length > 0);
    },
  },
  {
    name: "think_budget",
    run: async (talk) => {
      const { messages, reasoning } = taught(talk, "multiply");
      const found = await chat(talk, { messages, options: { think_budget: 6 }, max_tokens: 80 });
      assert.ok(reasoning.startsWith(found.reasoning.trim()));
      assert.ok(found.reasoning.length > 0 && found.reasoning.length < reasoning.length);
      assert.ok(found.text.trim());
    },
  },
  {
    name: "options through extra_body",
    run: async (talk) => {
      const more = { top_k: 1, min_p: 0.1, repeat_penalty: 1, keep_alive: "10m", options: { repeat_last_n: 0 } };
      assert.equal((await chat(talk, { temperature: 2, ...more })).text, talk.facts.answers[QUESTION]);
    },
  },
  {
    name: "truncate",
    run: async (talk) => {
      const old = [...asUser("word ".repeat(700)), { role: "assistant", content: "Yes." }];
      const messages = [...old, ...old, ...asUser(QUESTION)];
      const { usage } = await chat(talk, { messages, truncate: true, max_tokens: 4 });
      assert.ok(usage.prompt_tokens > 700 && usage.prompt_tokens < 1024, String(usage.prompt_tokens));
    },
  },
  {
    name: "labels and wishes that change nothing",
    run: async (talk) => {
      const labels = { user: "ada", metadata: { a: "b" }, service_tier: "auto", store: false, verbosity: "low" };
      const found = await chat(talk, { ...labels, safety_identifier: "x", prompt_cache_key: "y" });
      assert.equal(found.text, talk.facts.answers[QUESTION]);
      assert.ok(found.fingerprint.startsWith("puna-"), found.fingerprint);
    },
  },
  {
    name: "x-puna-debug",
    run: async (talk) => {
      const { puna } = await chat(talk, { max_tokens: 2 }, { headers: { "x-puna-debug": "1" } });
      for (const name of ["placement", "node", "queue_ms", "load_ms", "resumes"]) assert.ok(name in puna, name);
    },
  },
  {
    name: "request ids",
    modes: WHOLE,
    run: async (talk) => {
      const body = { model: "demo", messages: asUser(QUESTION), max_tokens: 1 };
      const { data, response } = await talk.api.chat.completions
        .create(body, { headers: { "x-request-id": "mine-7" } })
        .withResponse();
      assert.ok(data._request_id.startsWith("req_"));
      assert.equal(response.headers.get("x-client-request-id"), "mine-7");
    },
  },
  {
    name: "the client's own stream helper",
    modes: STREAM,
    run: async (talk) => {
      const final = await talk.api.chat.completions
        .stream({ model: "demo", messages: asUser(QUESTION) })
        .finalChatCompletion();
      assert.ok(final.choices[0].message.content);
      assert.equal(final.choices[0].finish_reason, "stop");
    },
  },
];

// Answers of the npm package `ollama`, whole or streamed, in one form.
import assert from "node:assert/strict";

export const QUESTION = "What is Puna?";
export const GREEDY = { temperature: 0 };
export const SCHEMA = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, size: { enum: [1, 2, 3] } },
  required: ["name", "size"],
  additionalProperties: false,
};
export const WHOLE = ["whole"];

async function joined(talk, answer, isChat) {
  const parts = [];
  if (talk.stream) for await (const part of await answer) parts.push(part);
  else parts.push(await answer);
  const holders = isChat ? parts.map((part) => part.message) : parts;
  return {
    text: holders.map((holder) => (isChat ? holder.content : holder.response) ?? "").join(""),
    thinking: holders.map((holder) => holder.thinking ?? "").join(""),
    calls: holders.flatMap((holder) => holder.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
    entries: parts.flatMap((part) => part.logprobs ?? []),
    last: parts.at(-1),
  };
}

export const chat = (talk, body = {}) => {
  const messages = [{ role: "user", content: QUESTION }];
  return joined(talk, talk.api.chat({ model: "demo", messages, options: GREEDY, ...body, stream: talk.stream }), true);
};
export const generate = (talk, body = {}) =>
  joined(talk, talk.api.generate({ model: "demo", prompt: QUESTION, options: GREEDY, ...body, stream: talk.stream }), false);

export async function raised(status, text, run) {
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

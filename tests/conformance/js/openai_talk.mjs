// Answers of the npm package `openai`, whole or streamed, in one form.
import assert from "node:assert/strict";

export const QUESTION = "What is Puna?";
export const SCHEMA = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, size: { enum: [1, 2, 3] } },
  required: ["name", "size"],
  additionalProperties: false,
};
export const WHOLE = ["whole"];

// One answer, put together if it came in pieces.
export async function chat(talk, body = {}, options = {}) {
  const asked = { model: "demo", temperature: 0, messages: [{ role: "user", content: QUESTION }], ...body };
  const found = { text: "", reasoning: "", calls: [], ids: [], reason: null, entries: [], choices: new Set() };
  Object.assign(found, { usage: null, puna: null, fingerprint: "" });
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
    return { ...found, usage: whole.usage, puna: whole.puna, fingerprint: whole.system_fingerprint };
  }
  const stream = await talk.api.chat.completions.create(
    { ...asked, stream: true, stream_options: { include_usage: true } },
    options,
  );
  for await (const chunk of stream) {
    found.usage = chunk.usage ?? found.usage;
    found.puna = chunk.puna ?? found.puna;
    found.fingerprint = chunk.system_fingerprint ?? found.fingerprint;
    for (const choice of chunk.choices) {
      found.choices.add(choice.index);
      if (choice.index === 0) add(choice.delta);
      found.reason = choice.finish_reason ?? found.reason;
      found.entries.push(...(choice.logprobs?.content ?? []));
    }
  }
  return found;
}

export async function raised(talk, kind, code, body, options) {
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

export const calls = (found) => found.calls.map(([name, text]) => [name, JSON.parse(text)]);
export const taught = (talk, name) => talk.facts.lessons[name];
export const image = (talk, number) => ({
  type: "image_url",
  image_url: { url: `data:image/png;base64,${talk.facts.images[number]}` },
});

// What is asked of /v1/chat/completions: the same for the page and for the snippets that are copied.

const OF_THE_BODY = ["temperature", "seed", "max_tokens", "top_p", "top_k"];

export function requestBody({ model, messages, options }) {
  const body = {
    model,
    messages: options.system ? [{ role: "system", content: options.system }, ...messages] : messages,
  };
  for (const name of OF_THE_BODY) if (options[name] !== undefined) body[name] = options[name];
  if (options.num_ctx !== undefined) body.options = { num_ctx: options.num_ctx };
  if (options.think) body.reasoning_effort = options.think;
  if (options.tools) body.tools = toolsOf(options.tools);
  return body;
}

function toolsOf(text) {
  try {
    const tools = JSON.parse(text);
    return Array.isArray(tools) ? tools : [tools];
  } catch {
    throw new Error("The tools are no JSON.");
  }
}

// One streamed answer as pieces: thinking, text, tool calls, the tokens behind them, and how it ended.

import { ApiError, call } from "./api.js";
import { eventsOf } from "./sse.js";

const ALTERNATIVES = 5;

export async function* streamAnswer(body, signal) {
  const asked = {
    ...body,
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: ALTERNATIVES,
  };
  const response = await call("/v1/chat/completions", {
    method: "POST",
    body: asked,
    signal,
    headers: { "x-puna-debug": "1" },
  });
  const id = response.headers.get("x-request-id");
  for await (const event of eventsOf(response)) {
    if (event.comment) yield { waiting: event.comment };
    if (!event.data) continue;
    if (event.data === "[DONE]") return;
    const chunk = JSON.parse(event.data);
    if (chunk.error) throw new ApiError(200, chunk.error.message, chunk.error.code);
    yield pieceOf(chunk, id);
  }
  throw new ApiError(200, "The answer broke off.");
}

function pieceOf(chunk, id) {
  const choice = chunk.choices[0];
  return {
    id,
    thinking: choice?.delta?.reasoning ?? "",
    text: choice?.delta?.content ?? "",
    calls: choice?.delta?.tool_calls ?? [],
    tokens: choice?.logprobs?.content ?? [],
    end: choice?.finish_reason ?? null,
    usage: chunk.usage ?? null,
    puna: chunk.puna ?? null,
  };
}

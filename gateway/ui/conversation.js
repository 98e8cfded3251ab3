// Questions and answers as they are written.

import { h, say } from "./dom.js";
import { duration, number } from "./format.js";
import { addTokens, startTokens } from "./tokens.js";

export function addQuestion(log, text) {
  log.append(h("div", { className: "turn question" }, h("h3", { className: "unseen" }, "You"), h("p", {}, text)));
  follow(log);
}

export function addAnswer(log) {
  const began_ms = performance.now();
  const thinking = h("div", { className: "tokens" });
  const thought = h(
    "details",
    { className: "thinking", open: true, hidden: true },
    h("summary", {}, "Thinking"),
    thinking,
  );
  const text = h("div", { className: "tokens text" });
  const calls = h("div", { className: "calls" });
  const foot = h("p", { className: "foot faint" });
  const turn = h(
    "div",
    { className: "turn answer" },
    h("h3", { className: "unseen" }, "Answer"),
    thought,
    text,
    calls,
    foot,
  );
  const said = { thinking: "", text: "", calls: [], began: false };
  startTokens(thinking);
  startTokens(text);
  log.append(turn);

  const add = (piece) => {
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (piece.thinking) {
      thought.hidden = false;
      said.thinking += piece.thinking;
      addTokens(thinking, piece.thinking, piece.tokens);
    }
    if (piece.text) {
      if (!said.text && !thought.hidden) thought.open = false;
      said.text += piece.text;
      addTokens(text, piece.text, piece.tokens);
    }
    for (const call of piece.calls) addCall(calls, said.calls, call);
    if (piece.text || piece.thinking || piece.calls.length) said.began = true;
    if (said.began && !said.first_ms) said.first_ms = performance.now() - began_ms;
    if (piece.end) said.end = piece.end;
    if (piece.usage) say(foot, footOf(said, piece, began_ms));
    if (atEnd) follow(log);
  };
  const end = (words, failed = false) => {
    if (words)
      turn.append(h("p", { className: failed ? "problem" : "foot faint", role: failed ? "alert" : undefined }, words));
    follow(log);
  };
  return { add, end, message: () => messageOf(said) };
}

function addCall(list, calls, piece) {
  let call = calls[piece.index];
  if (!call) {
    call = calls[piece.index] = {
      id: piece.id,
      type: "function",
      function: { name: piece.function.name, arguments: "" },
    };
    call.shown = h("code");
    list.append(
      h("div", { className: "call" }, h("strong", {}, `Calls ${piece.function.name}`), h("pre", {}, call.shown)),
    );
  }
  call.function.arguments += piece.function.arguments ?? "";
  say(call.shown, call.function.arguments);
}

function messageOf(said) {
  if (!said.began) return null;
  const message = { role: "assistant", content: said.text };
  if (said.calls.length)
    message.tool_calls = said.calls.map(({ id, type, function: named }) => ({ id, type, function: named }));
  return message;
}

function footOf(said, piece, began_ms) {
  const { usage, puna } = piece;
  const seconds = (performance.now() - began_ms - said.first_ms) / 1000;
  const cached = usage.prompt_tokens_details?.cached_tokens;
  return [
    `${number(usage.prompt_tokens)} in${cached ? ` (${number(cached)} held)` : ""}, ${number(usage.completion_tokens)} out`,
    said.first_ms ? `first after ${duration(said.first_ms)}` : "",
    said.first_ms && usage.completion_tokens > 1
      ? `${number((usage.completion_tokens - 1) / seconds, 1)} tokens/s`
      : "",
    said.end === "length" ? "cut at the limit" : "",
    puna?.node,
    piece.id,
  ]
    .filter(Boolean)
    .join(" · ");
}

function follow(log) {
  log.scrollTop = log.scrollHeight;
}

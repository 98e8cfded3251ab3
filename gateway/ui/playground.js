// Ask a model, and see how it answers: streamed, with its thinking, its tool calls and its probabilities.

import { known, may, onAccess } from "./access.js";
import { announce } from "./announce.js";
import { ApiError } from "./api.js";
import { streamAnswer } from "./answer_stream.js";
import { copied } from "./clipboard.js";
import { addAnswer, addQuestion } from "./conversation.js";
import { h, mark, say } from "./dom.js";
import { hideAlternatives } from "./tokens.js";
import { makeOptions } from "./options.js";
import { requestBody } from "./request_body.js";
import { asCurl, asPython } from "./snippets.js";
import { sorted, store, watch } from "./store.js";
import { onView, viewParameter } from "./tabs.js";

const parts = {};
const messages = [];
let running = null;

export function startPlayground(view) {
  parts.models = h("select", { required: true });
  parts.name = h("input", { required: true, placeholder: "demo", autocomplete: "off", spellcheck: false, ariaLabel: "Model" });
  parts.model = parts.models; // or the name, where the key may not see which models there are
  parts.options = makeOptions();
  parts.colours = h("input", { type: "checkbox", checked: true, onchange: showColours });
  parts.log = h("div", { className: "conversation", role: "log", ariaLabel: "Conversation", tabIndex: 0 });
  parts.hint = h("p", { className: "empty" }, "Ask something. Everything stays in this tab.");
  parts.log.append(parts.hint);
  parts.text = h("textarea", { rows: 2, placeholder: "Your message", required: true, onkeydown: onKey });
  parts.send = h("button", { className: "main", type: "submit" }, "Send");
  parts.stop = h("button", { type: "button", onclick: () => running?.abort(), hidden: true }, "Stop");
  parts.state = h("span", { className: "faint state", role: "status" });
  parts.refused = h("p", { className: "problem" });
  view.append(
    h("h2", { className: "unseen" }, "Playground"),
    h("div", { className: "play" }, side(), h("div", { className: "chat card" }, parts.log, composer())),
  );
  watch(drawModels);
  onAccess(drawAccess);
  onView((name) => name === "playground" && (drawModels(), drawAccess()));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || view.hidden) return;
    if (!hideAlternatives()) running?.abort();
  });
  showColours();
}

function side() {
  const copy = (text, make) =>
    h(
      "button",
      {
        type: "button",
        className: "small",
        ariaLabel: `Copy as ${text}`,
        onclick: async () => say(parts.state, await copied(make(), `as ${text}`)),
      },
      text,
    );
  return h(
    "aside",
    { className: "card side", ariaLabel: "Settings of the answer" },
    h("label", { className: "field" }, "Model", parts.models, parts.name),
    parts.options.element,
    h("label", { className: "field check" }, parts.colours, "Colour tokens by probability"),
    h(
      "div",
      { className: "row copies" },
      h("span", { className: "faint", ariaHidden: "true" }, "Copy as"),
      copy("curl", () => asCurl(body())),
      copy("Python", () => asPython(body())),
      h("button", { type: "button", className: "small", onclick: clear }, "Clear"),
    ),
  );
}

function composer() {
  return h(
    "form",
    { className: "composer", onsubmit: (event) => (event.preventDefault(), send()) },
    h("label", { className: "field" }, h("span", { className: "unseen" }, "Message"), parts.text),
    h("div", {}, parts.stop, parts.send),
    h("div", { className: "notes" }, parts.state, parts.refused),
  );
}

function drawModels() {
  const names = sorted("models")
    .filter((model) => !model.error && model.capabilities.includes("completion"))
    .map((model) => model.name);
  if (names.join("\n") !== parts.names) {
    parts.names = names.join("\n");
    const chosen = parts.models.value;
    parts.models.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    parts.models.value = names.includes(chosen) ? chosen : (names[0] ?? "");
  }
  const wanted = viewParameter("model");
  if (location.hash.startsWith("#playground") && wanted !== parts.wanted && names.includes(wanted)) {
    parts.wanted = wanted;
    parts.models.value = wanted;
  }
  if (running && !running.began) showWaiting();
}

function drawAccess() {
  say(parts.refused, may("infer") || !known ? "" : "This key may not ask: it lacks the scope infer.");
  parts.send.disabled = !may("infer");
  parts.model = may("infer") && !may("models:read") ? parts.name : parts.models;
  parts.name.hidden = parts.model !== parts.name;
  parts.models.hidden = parts.model !== parts.models;
}

function showColours() {
  document.body.dataset.colours = parts.colours.checked ? "on" : "off";
}

function onKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

function body(more = []) {
  return requestBody({ model: parts.model.value, messages: [...messages, ...more], options: parts.options.values() });
}

async function send() {
  const text = parts.text.value.trim();
  if (!text || running || !may("infer")) return;
  if (!parts.model.reportValidity()) return;
  let asked;
  try {
    asked = body([{ role: "user", content: text }]);
  } catch (error) {
    say(parts.state, error.message);
    return;
  }
  messages.push({ role: "user", content: text });
  parts.text.value = "";
  parts.hint.remove();
  addQuestion(parts.log, text);
  const answer = addAnswer(parts.log);
  running = new AbortController();
  setRunning(true);
  showWaiting();
  await receive(asked, answer);
  running = null;
  setRunning(false);
}

async function receive(asked, answer) {
  try {
    for await (const piece of streamAnswer(asked, running.signal)) {
      if (piece.waiting) {
        say(parts.state, piece.waiting);
        continue;
      }
      if (!running.began) say(parts.state, "Answering");
      running.began = true;
      answer.add(piece);
    }
    answer.end("");
    announce("The answer is complete");
  } catch (error) {
    const stopped = running.signal.aborted;
    answer.end(stopped ? "stopped" : error instanceof ApiError ? error.message : "The connection broke.", !stopped);
    announce(stopped ? "The answer was stopped" : "The answer failed");
  }
  say(parts.state, "");
  const said = answer.message();
  if (said) messages.push(said);
  else messages.pop();
}

function showWaiting() {
  const model = store.models.get(parts.model.value);
  const loading = model?.replicas.find((replica) => replica.state === "loading");
  if (loading) say(parts.state, `Loading ${Math.floor((loading.fraction ?? 0) * 100)} %`);
  else say(parts.state, model?.replicas.length ? "Waiting for a slot" : "Loading the model");
}

function setRunning(on) {
  parts.stop.hidden = !on;
  parts.send.hidden = on;
  mark(parts.log, "aria-busy", on ? "true" : null);
  (on ? parts.stop : parts.text).focus();
}

function clear() {
  running?.abort();
  messages.length = 0;
  parts.log.replaceChildren(parts.hint);
  hideAlternatives();
}

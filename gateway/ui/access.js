// The key of this tab, and what it is good for. What it is not good for is not offered.

import { ApiError, json, key } from "./api.js";
import { h, say } from "./dom.js";

const listeners = new Set();
const parts = {};
let me = { keys: false, scopes: [], models: null };

export function may(scope) {
  return me.scopes.includes(scope);
}

export function onAccess(listener) {
  listeners.add(listener);
}

export function startAccess() {
  for (const name of ["button", "dialog", "form", "input", "problem", "scopes", "forget", "cancel"]) {
    parts[name] = document.getElementById(`key-${name}`);
  }
  parts.button.addEventListener("click", () => ask(""));
  parts.cancel.addEventListener("click", () => parts.dialog.close());
  parts.forget.addEventListener("click", () => use(""));
  parts.form.addEventListener("submit", (event) => {
    event.preventDefault();
    use(parts.input.value.trim());
  });
}

// Learn who we are. Resolves to false where a key is needed first.
export async function learn() {
  try {
    me = await json("/puna/v1/whoami");
  } catch (error) {
    me = { keys: true, scopes: [], models: null };
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    ask(key.get() ? error.message : "");
    return false;
  } finally {
    show();
  }
  return true;
}

export function ask(problem) {
  say(parts.problem, problem);
  parts.input.value = key.get();
  if (!parts.dialog.open) parts.dialog.showModal();
}

async function use(text) {
  key.set(text);
  say(parts.problem, "");
  try {
    if (!(await learn())) return;
  } catch (error) {
    say(parts.problem, error.message);
    return;
  }
  parts.dialog.close();
  for (const listener of listeners) listener();
}

function show() {
  document.body.dataset.scopes = me.scopes.join(" ");
  parts.button.hidden = !me.keys;
  say(parts.button, me.key ? `Key of ${me.owner ?? me.key}` : "Key");
  const scopes = me.scopes.map((scope) => h("span", { className: "chip" }, scope));
  parts.scopes.replaceChildren(h("span", { className: "faint" }, me.scopes.length ? "Good for" : ""), ...scopes);
}

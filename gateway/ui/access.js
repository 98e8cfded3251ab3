// The key of this tab, and what it is good for. What it is not good for is not offered.

import { ApiError, json, key } from "./api.js";
import { h, say } from "./dom.js";

const listeners = new Set();
const parts = {};
let me = { keys: false, scopes: [] };
let changed = () => {};
let trying = false; // the dialog is open and its key is being tried

export let known = false; // false: the scopes of the key are not known yet

export function may(scope) {
  return me.scopes.includes(scope);
}

// Hears whenever it is known anew what may be done.
export function onAccess(listener) {
  listeners.add(listener);
}

// `onKey` hears when another key is used.
export function startAccess(onKey) {
  changed = onKey;
  for (const name of ["button", "dialog", "form", "input", "problem", "scopes", "forget", "cancel"]) {
    parts[name] = document.getElementById(`key-${name}`);
  }
  parts.button.addEventListener("click", () => ask(""));
  parts.cancel.addEventListener("click", () => parts.dialog.close());
  parts.forget.addEventListener("click", () => {
    parts.input.value = "";
    use("");
  });
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
    say(parts.problem, error.message);
    if (!(error instanceof ApiError) || error.status !== 401) throw error; // who we are is not known; what was stays
    me = { keys: true, scopes: [] };
    show();
    ask(key.get() ? error.message : "");
    return false;
  }
  show();
  if (trying) parts.dialog.close();
  trying = false;
  return true;
}

export function ask(problem) {
  say(parts.problem, problem);
  if (parts.dialog.open) return;
  parts.input.value = key.get();
  parts.dialog.showModal();
}

function use(text) {
  key.set(text);
  trying = true;
  say(parts.problem, "");
  changed();
}

function show() {
  known = true;
  document.body.dataset.scopes = me.scopes.join(" ");
  parts.button.hidden = !me.keys;
  say(parts.button, me.key ? `Key of ${me.owner ?? me.key}` : "Key");
  const scopes = me.scopes.map((scope) => h("span", { className: "chip" }, scope));
  parts.scopes.replaceChildren(h("span", { className: "faint" }, me.scopes.length ? "Good for" : ""), ...scopes);
  for (const listener of listeners) listener();
}

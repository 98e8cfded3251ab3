// Load, unload, pin, set what is wanted, ask why, try: each only where the key may.

import { may } from "./access.js";
import { act } from "./acting.js";
import { announce } from "./announce.js";
import { call, json } from "./api.js";
import { h, mark, showOnly } from "./dom.js";
import { editPolicy, pathOf } from "./policy.js";
import { linesOf } from "./sse.js";
import { go } from "./tabs.js";

export function makeActions(name) {
  const made = { busy: "", problem: h("span", { className: "problem", role: "alert" }) };
  const button = (text, work) =>
    h("button", { className: "small", onclick: () => act(made, work), ariaLabel: `${text} ${name}` }, text);
  made.load = button("Load", () => load(name));
  made.unload = button("Unload", () => unload(name));
  made.pin = button("Pin", () => pin(name, made.pin.getAttribute("aria-pressed") !== "true"));
  made.policy = h(
    "button",
    { className: "small quiet", onclick: () => act(made, () => editPolicy(name)), ariaLabel: `Policy of ${name}` },
    "Policy",
  );
  made.why = h(
    "button",
    {
      className: "small quiet",
      onclick: () => go("why", { model: name }),
      ariaLabel: `Why ${name} lies where it does`,
    },
    "Why",
  );
  made.chat = h(
    "button",
    {
      className: "small quiet",
      onclick: () => go("playground", { model: name }),
      ariaLabel: `Try ${name} in the playground`,
    },
    "Try",
  );
  made.row = h("div", { className: "actions" }, made.why, made.chat, made.policy, made.pin, made.unload, made.load);
  return made;
}

export function drawActions(made, model) {
  const loaded = model.replicas.some((replica) => replica.state !== "broken");
  made.pin.hidden = !may("admin:cluster") || model.wanted?.from_file === true;
  made.policy.hidden = !may("admin:cluster");
  made.chat.hidden = !may("infer") || !model.capabilities.includes("completion");
  mark(made.pin, "aria-pressed", String(Boolean(model.wanted?.constraints.pinned)));
  for (const button of [made.load, made.unload, made.pin, made.policy]) button.disabled = Boolean(made.busy);
  const next = loaded ? made.unload : model.error ? null : made.load;
  showOnly(may("models:write") ? next : null, [made.load, made.unload]);
}

async function load(name) {
  announce(`Loading ${name}`);
  const response = await call("/puna/v1/load", { method: "POST", body: { model: name } });
  for await (const line of linesOf(response)) {
    const news = JSON.parse(line);
    if (news.error) throw new Error(news.error.message);
    if (news.status === "ready") announce(`${name} is loaded`);
  }
}

async function unload(name) {
  const { replicas } = await json("/puna/v1/unload", { method: "POST", body: { model: name } });
  if (!replicas) throw new Error("A constraint keeps it loaded");
  announce(`${name} unloads`);
}

// What else is set for the model stays: the constraints are read, changed in one field and written back.
async function pin(name, pinned) {
  const path = pathOf(name);
  const { constraints } = await json(path);
  await call(path, { method: "PUT", body: { ...constraints, pinned } });
  announce(`${name} is ${pinned ? "pinned" : "no longer pinned"}`);
}

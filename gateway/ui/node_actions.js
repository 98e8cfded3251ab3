// Take a node out of use and back, have a device tested again: each only where the key may.

import { may } from "./access.js";
import { act } from "./acting.js";
import { announce } from "./announce.js";
import { call, json } from "./api.js";
import { confirmed } from "./confirm.js";
import { h, say, showOnly } from "./dom.js";

const BUDGET_S = 300;

export function makeNodeActions(id) {
  const made = { busy: "", problem: h("span", { className: "problem", role: "alert" }) };
  const button = (text, label, work) =>
    h("button", { className: "small", ariaLabel: label, onclick: () => act(made, work) }, text);
  made.drain = button("Drain", `Drain ${id}`, () => drain(id));
  made.undrain = button("Undrain", `Undrain ${id}`, () => undrain(id));
  made.row = h("div", { className: "actions" }, made.problem, made.drain, made.undrain);
  return made;
}

export function drawNodeActions(made, node) {
  const drained = node.draining_replicas !== null;
  made.drain.disabled = made.undrain.disabled = Boolean(made.busy);
  showOnly(may("admin:cluster") ? (drained ? made.undrain : made.drain) : null, [made.drain, made.undrain]);
}

async function drain(id) {
  const budget = h("input", { type: "number", min: 0, max: 86400, step: 1, required: true, value: BUDGET_S });
  const sure = await confirmed({
    title: `Drain ${id}?`,
    text: "Nothing new is placed there. What runs there moves to other nodes once its requests are answered, and ends where no other node has room. Undrain puts the node into use again.",
    action: "Drain",
    fields: [h("label", { className: "field" }, "Seconds that running requests get", budget)],
  });
  if (!sure) return;
  const { state } = await json(`${pathOf(id)}/drain?budget_s=${budget.value}`, { method: "POST" });
  announce(`${id} is ${state}`);
}

async function undrain(id) {
  await call(`${pathOf(id)}/undrain`, { method: "POST" });
  announce(`${id} is in use again`);
}

function pathOf(id) {
  return `/puna/v1/nodes/${encodeURIComponent(id)}`;
}

export function makeClear() {
  const made = { busy: "", problem: h("p", { className: "problem", role: "alert" }), place: null };
  made.button = h("button", { className: "small", onclick: () => act(made, () => clear(made.place), "tested") });
  return made;
}

// An operator can have what is not used any more tested again; what is well has nothing to clear.
export function drawClear(made, node, device) {
  made.place = { id: `${node.id}/${device.id}`, name: device.name };
  made.button.hidden = !may("admin:cluster") || device.state === "ok";
  made.button.disabled = Boolean(made.busy);
  made.button.ariaLabel = `Test ${device.name} of ${node.id} again`;
  say(made.button, made.busy ? "Testing…" : "Test again");
}

async function clear({ id, name }) {
  announce(`${name} is being tested`);
  const device = await json("/puna/v1/devices/clear", { method: "POST", body: { device: id } });
  if (device.state !== "ok") throw new Error(`Tested again, and still ${device.state}`);
  announce(`${name} passed its test`);
}

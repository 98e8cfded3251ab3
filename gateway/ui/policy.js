// What is wanted of a model, as a form: how many replicas, what stays loaded, where it may lie.

import { announce } from "./announce.js";
import { call, json } from "./api.js";
import { confirmed } from "./confirm.js";
import { h, mark, say } from "./dom.js";
import { sorted } from "./store.js";

const SWITCHES = [
  ["pinned", "Pinned", "never evicted, stays when it is idle"],
  ["preload", "Preload", "loaded before the first request"],
  ["require_gpu", "Only on GPUs", "fails rather than use the CPU"],
];
const NUMBERS = [
  ["replicas_min", "Replicas, at least", { min: 0, max: 64 }, "0"],
  ["replicas_max", "Replicas, at most", { min: 1, max: 64 }, "as at least"],
  ["slots", "Slots", { min: 1, max: 256 }, "automatic"],
  ["num_ctx", "num_ctx, tokens", { min: 4 }, "automatic"],
  ["priority", "Priority, −10 to 10", { min: -10, max: 10 }, "0"],
];
const SPREADS = [
  ["", "As the cluster does"],
  ["pack", "Pack: few devices"],
  ["spread", "Spread: many devices"],
];

// Resolves when the form is closed, however that was.
export async function editPolicy(name) {
  const path = pathOf(name);
  const wanted = await json(path);
  await new Promise((resolve) => {
    const dialog = makeForm(name, wanted, path, resolve);
    document.body.append(dialog);
    dialog.showModal();
  });
}

function makeForm(name, wanted, path, onEnd) {
  const now = wanted.constraints;
  const inputs = fieldsOf(now, wanted.defaults);
  const problem = h("p", { className: "problem", role: "alert" });
  const button = (className, text, onclick) => h("button", { type: "button", className, onclick }, text);
  const save = h("button", { type: "submit", className: "main" }, "Save");
  const forget = button("quiet", "Forget all", () => send(() => forgetAll(name, path)));
  const dialog = h("dialog", {
    className: "wide policy",
    ariaLabel: `Policy of ${name}`,
    onclose: () => (dialog.remove(), onEnd()),
  });
  const send = async (work) => {
    say(problem, "");
    save.disabled = forget.disabled = true;
    try {
      if ((await work()) !== false) dialog.close();
    } catch (error) {
      say(problem, error.message);
    } finally {
      save.disabled = forget.disabled = wanted.from_file;
    }
  };
  save.disabled = forget.disabled = wanted.from_file;
  dialog.append(
    h(
      "form",
      { onsubmit: (event) => (event.preventDefault(), send(() => put(name, path, { ...now, ...inputs.values() }))) },
      h("h2", {}, `Policy of ${name}`),
      h("p", { className: "faint" }, noteOf(wanted)),
      h("fieldset", { className: "bare", disabled: wanted.from_file, ariaLabel: "What is wanted" }, inputs.elements),
      problem,
      h(
        "div",
        { className: "row end" },
        forget,
        h("span", { className: "push" }),
        button("quiet", "Cancel", () => dialog.close()),
        save,
      ),
    ),
  );
  return dialog;
}

function noteOf(wanted) {
  if (wanted.from_file) return "Set by the file that PUNA_PLACEMENTS names; it is changed there.";
  const shown = new Set([...SWITCHES, ...NUMBERS].map(([name]) => name));
  for (const name of ["keep_alive", "policy", "nodes", "devices"]) shown.add(name);
  const others = Object.entries(wanted.constraints).filter(([name]) => !shown.has(name));
  if (!others.length) return "An empty field asks for nothing.";
  return `Also set, and left as it is: ${others.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ")}.`;
}

function fieldsOf(now, defaults) {
  const switches = SWITCHES.map(([name, label, text]) => {
    const input = h("input", { type: "checkbox", checked: Boolean(now[name]) });
    const words = h("span", {}, h("strong", {}, label), h("span", { className: "faint" }, `, ${text}`));
    return { name, value: () => input.checked, element: h("label", { className: "field check" }, input, words) };
  });
  const numbers = NUMBERS.map(([name, label, limits, hint]) => {
    const input = h("input", {
      type: "number",
      step: 1,
      ...limits,
      placeholder: defaults[name] === undefined ? hint : `${defaults[name]} by default`,
      value: now[name] ?? "",
    });
    const value = () => (input.value === "" ? undefined : Number(input.value));
    return { name, value, element: h("label", { className: "field" }, label, input) };
  });
  const keep = h("input", { placeholder: "10m, 3600, −1 for ever", value: now.keep_alive ?? "", autocomplete: "off" });
  const spread = h(
    "select",
    {},
    SPREADS.map(([value, text]) => h("option", { value }, text)),
  );
  spread.value = now.policy ?? "";
  const texts = [
    {
      name: "keep_alive",
      value: () => durationOf(keep.value),
      element: h("label", { className: "field" }, "Kept when idle", keep),
    },
    {
      name: "policy",
      value: () => spread.value,
      element: h("label", { className: "field row-wide" }, "Devices", spread),
    },
  ];
  const places = [
    choices("nodes", "Only on these nodes", nodeNames(), now.nodes),
    choices("devices", "Only on these devices", deviceNames(), now.devices),
  ];
  const all = [...switches, ...numbers, ...texts, ...places];
  return {
    elements: [
      h(
        "div",
        { className: "switches" },
        switches.map((one) => one.element),
      ),
      h(
        "div",
        { className: "pairs" },
        [...numbers, ...texts].map((one) => one.element),
      ),
      h(
        "div",
        { className: "pairs" },
        places.map((one) => one.element),
      ),
    ],
    values: () => Object.fromEntries(all.map((one) => [one.name, one.value()])),
  };
}

// Known values, and set ones that are unknown now: a node that is away keeps its place in the policy.
function choices(name, label, known, chosen = []) {
  const shown = [...known, ...chosen.filter((one) => !known.some(([value]) => value === one)).map((one) => [one, one])];
  const boxes = shown.map(([value, text]) => {
    const input = h("input", { type: "checkbox", value, checked: chosen.includes(value) });
    return h("label", { className: "field check" }, input, h("span", {}, text));
  });
  const values = () =>
    boxes
      .map((box) => box.firstElementChild)
      .filter((input) => input.checked)
      .map((input) => input.value);
  const list = boxes.length ? boxes : h("span", { className: "faint" }, "None is known");
  return { name, value: values, element: h("fieldset", { className: "choices" }, h("legend", {}, label), list) };
}

function nodeNames() {
  return sorted("nodes", (node) => node.id).map((node) => [node.id, node.id]);
}

function deviceNames() {
  return sorted("nodes", (node) => node.id).flatMap((node) =>
    node.devices
      .filter((device) => device.total_bytes)
      .map((device) => [`${node.id}/${device.id}`, `${device.name} of ${node.id}`]),
  );
}

// "−1" as people write it, "3600" as seconds, "10m" as it is.
function durationOf(text) {
  const written = text.trim().replace("−", "-");
  if (!written) return undefined;
  return Number.isNaN(Number(written)) ? written : Number(written);
}

async function put(name, path, body) {
  await call(path, { method: "PUT", body });
  announce(`The policy of ${name} is set`);
}

async function forgetAll(name, path) {
  const sure = await confirmed({
    title: `Forget the policy of ${name}?`,
    text: "Everything that is set for it is gone, and replicas that only the policy kept may be unloaded.",
    action: "Forget",
  });
  if (!sure) return false;
  await call(path, { method: "DELETE" });
  announce(`The policy of ${name} is forgotten`);
  return true;
}

export function pathOf(name) {
  return `/puna/v1/placements/${encodeURIComponent(name).replaceAll("%2F", "/").replaceAll("%3A", ":")}`;
}

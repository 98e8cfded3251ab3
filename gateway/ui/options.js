// The options of an answer as fields; an empty field asks for nothing.

import { h } from "./dom.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", type: "number", min: 0, max: 2, step: 0.05, placeholder: "0.8" },
  { name: "seed", label: "Seed", type: "number", step: 1, placeholder: "random" },
  { name: "max_tokens", label: "Max tokens", type: "number", min: 1, step: 1, placeholder: "no limit" },
  { name: "num_ctx", label: "num_ctx", type: "number", min: 4, step: 1, placeholder: "automatic" },
  { name: "top_p", label: "top_p", type: "number", min: 0, max: 1, step: 0.01, placeholder: "1" },
  { name: "top_k", label: "top_k", type: "number", min: -1, step: 1, placeholder: "40" },
];
const THINKING = [
  ["", "As the model does"],
  ["none", "Off"],
  ["low", "Low"],
  ["medium", "Medium"],
  ["high", "High"],
];

export function makeOptions() {
  const inputs = Object.fromEntries(
    FIELDS.map(({ label, ...properties }) => [properties.name, h("input", { ...properties, autocomplete: "off" })]),
  );
  const think = h(
    "select",
    {},
    THINKING.map(([value, text]) => h("option", { value }, text)),
  );
  const system = h("textarea", { rows: 2, placeholder: "None" });
  const tools = h("textarea", {
    rows: 4,
    spellcheck: false,
    placeholder: '[{"type": "function", "function": {"name": …}}]',
  });
  const element = h(
    "div",
    { className: "options" },
    h(
      "div",
      { className: "pairs" },
      FIELDS.map(({ name, label }) => h("label", { className: "field" }, label, inputs[name])),
    ),
    h("label", { className: "field" }, "Thinking", think),
    h(
      "details",
      {},
      h("summary", {}, "System text and tools"),
      h("label", { className: "field" }, "System text", system),
      h("label", { className: "field" }, "Tools (JSON)", tools),
    ),
  );
  const values = () => ({
    ...Object.fromEntries(
      FIELDS.filter(({ name }) => inputs[name].value !== "").map(({ name }) => [name, Number(inputs[name].value)]),
    ),
    think: think.value,
    system: system.value.trim(),
    tools: tools.value.trim(),
  });
  return { element, values };
}

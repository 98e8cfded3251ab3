// Why a model lies where it does, or where it would go: every place that was considered, as a picture.

import { ApiError, json } from "./api.js";
import { h, mark } from "./dom.js";
import { duration, number, plural } from "./format.js";
import { sorted, watch } from "./store.js";
import { go, onView, viewParameter } from "./tabs.js";
import { candidateCard, thereBytes } from "./why_candidate.js";

const AGAIN_MS = 1000;
const AGAIN_MAX = 20;
const parts = {};
let asked = 0;

export function startWhy(view) {
  parts.model = h("select", { required: true });
  parts.context = h("input", { type: "number", min: 4, step: 1, placeholder: "automatic" });
  parts.slots = h("input", { type: "number", min: 1, max: 256, step: 1, placeholder: "automatic" });
  parts.last = h("input", { type: "checkbox" });
  parts.form = h(
    "form",
    {
      className: "row tools",
      onsubmit: (event) => (event.preventDefault(), go("why", { model: parts.model.value }), ask()),
    },
    h("label", { className: "field inline" }, "Model", parts.model),
    h("label", { className: "field inline" }, "num_ctx", parts.context),
    h("label", { className: "field inline" }, "slots", parts.slots),
    h("label", { className: "field inline check" }, parts.last, "the last real decision"),
    h("button", { className: "main", type: "submit" }, "Ask"),
  );
  parts.answer = h(
    "div",
    { className: "explained", ariaLive: "polite" },
    h("p", { className: "empty" }, "Choose a model, and see what fits where. Nothing is loaded by asking."),
  );
  view.append(h("h2", { className: "unseen" }, "Why"), parts.form, parts.answer);
  for (const field of [parts.model, parts.context, parts.slots, parts.last])
    field.addEventListener("change", () => parts.form.requestSubmit());
  watch(drawModels);
  onView((name) => name === "why" && arrive());
}

function drawModels() {
  const names = sorted("models").map((model) => model.name);
  if (names.join("\n") === parts.names) return;
  parts.names = names.join("\n");
  const chosen = parts.model.value || viewParameter("model");
  parts.model.replaceChildren(
    h("option", { value: "" }, "Choose"),
    ...names.map((name) => h("option", { value: name }, name)),
  );
  parts.model.value = names.includes(chosen) ? chosen : "";
  if (location.hash.startsWith("#why")) arrive();
}

function arrive() {
  const wanted = viewParameter("model");
  const known = [...parts.model.options].some((option) => option.value === wanted);
  if (!wanted || !known) return;
  if (parts.model.value === wanted && parts.asked === wanted) return;
  parts.model.value = wanted;
  ask();
}

async function ask(again = 0) {
  const model = parts.model.value;
  if (!model) return;
  parts.asked = model;
  const number = (asked += 1);
  mark(parts.answer, "aria-busy", "true");
  try {
    const explanation = await json("/puna/v1/explain", { method: "POST", body: question(model) });
    if (number !== asked) return;
    show(explanation);
    // A report that is missing is being counted: the answer follows by itself.
    if (explanation.outcome === "measuring" && again < AGAIN_MAX)
      setTimeout(() => number === asked && ask(again + 1), AGAIN_MS);
  } catch (error) {
    if (number === asked)
      parts.answer.replaceChildren(
        h(
          "p",
          { className: "problem", role: "alert" },
          error instanceof ApiError ? error.message : "The gateway does not answer.",
        ),
      );
  } finally {
    if (number === asked) parts.answer.removeAttribute("aria-busy");
  }
}

function question(model) {
  const options = {};
  if (parts.context.value) options.num_ctx = Number(parts.context.value);
  const body = { model, options, last: parts.last.checked };
  if (parts.slots.value) body.slots = Number(parts.slots.value);
  return body;
}

function show(explanation) {
  const most = Math.max(
    ...explanation.candidates.flatMap((one) =>
      one.devices.map((device) => Math.max(device.need_bytes, thereBytes(device))),
    ),
    1,
  );
  parts.answer.replaceChildren(
    decision(explanation),
    ...lists(explanation),
    h("h3", {}, explanation.candidates.length ? "Places that were considered" : "No place was considered"),
    h(
      "div",
      { className: "candidates" },
      explanation.candidates.map((one) => candidateCard(one, most)),
    ),
  );
}

function decision(explanation) {
  const { outcome, layout } = explanation;
  const words = [
    explanation.hypothetical ? "As it would be decided now" : `Decided ${duration(explanation.age_s * 1000)} ago`,
    explanation.attempts ? `after ${plural(explanation.attempts, "failed load")}` : "",
    explanation.waits_for ? `waits for ${explanation.waits_for}` : "",
  ];
  const sizes =
    layout &&
    `${plural(layout.slots, "slot")} of ${number(layout.context_length)} tokens, cache ${layout.cache_type_k || "f16"}/${layout.cache_type_v || "f16"}`;
  const state = h("span", { className: "badge" }, outcome.replaceAll("_", " "));
  mark(state, "data-state", outcome);
  return h(
    "div",
    { className: "card decision" },
    h(
      "div",
      { className: "row" },
      h("h3", {}, explanation.model),
      state,
      h("span", { className: "faint" }, words.filter(Boolean).join(" · ")),
    ),
    explanation.message && h("p", {}, explanation.message),
    sizes && h("p", { className: "facts" }, sizes),
  );
}

function lists(explanation) {
  const found = [];
  if (explanation.victims.length) {
    const lines = explanation.victims.map((one) =>
      h(
        "li",
        {},
        h("strong", {}, one.model),
        ` on ${one.node}: costs ${number(one.loss, 2)} s of work that is likely needed again`,
      ),
    );
    found.push(h("div", { className: "card" }, h("h3", {}, "Would be evicted"), h("ul", {}, lines)));
  }
  if (explanation.would_fit.length) {
    found.push(
      h(
        "div",
        { className: "card" },
        h("h3", {}, "Would make it fit"),
        h(
          "ul",
          {},
          explanation.would_fit.map((text) => h("li", {}, text)),
        ),
      ),
    );
  }
  return found;
}

// Every model: what runs, what a load is doing, who waits, and what may be done about it.

import { onAccess } from "./access.js";
import { makeAliases } from "./aliases.js";
import { h, mark, say, sync } from "./dom.js";
import { bytes, crashText, number, percent, plural, wait } from "./format.js";
import { hueOf } from "./hues.js";
import { drawActions, makeActions } from "./model_actions.js";
import { makePull } from "./pull.js";
import { drawReplica, makeReplica } from "./replica.js";
import { sorted, store, watch } from "./store.js";

const parts = {};

export function startModels(view) {
  parts.search = h("input", { type: "search", placeholder: "Name", oninput: draw });
  parts.count = h("span", { className: "faint" });
  parts.list = h("div", { className: "models" });
  parts.empty = h("p", { className: "empty" });
  const pull = makePull();
  const tools = h(
    "div",
    { className: "row tools" },
    h("label", { className: "field inline" }, "Find", parts.search),
    parts.count,
    h("span", { className: "push" }),
    pull.form,
  );
  view.append(h("h2", { className: "unseen" }, "Models"), tools, pull.list, parts.list, parts.empty, makeAliases());
  watch(draw);
  onAccess(draw);
  setInterval(() => !view.hidden && draw(), 1000);
  draw();
}

function draw() {
  const wanted = parts.search.value.trim().toLowerCase();
  const all = sorted("models");
  const models = all.filter((model) => model.name.toLowerCase().includes(wanted));
  models.sort((a, b) => Boolean(b.replicas.length) - Boolean(a.replicas.length));
  say(
    parts.count,
    `${plural(all.length, "model")}, ${number(all.filter((model) => model.replicas.length).length)} loaded`,
  );
  sync(parts.list, models, (model) => model.name, makeModel, drawModel);
  parts.empty.hidden = models.length > 0;
  say(
    parts.empty,
    !store.heardAt ? store.silence : wanted ? "No model has that in its name." : "There is no model yet.",
  );
}

function makeModel(model) {
  const made = {
    state: h("span", { className: "badge" }),
    facts: h("p", { className: "facts" }),
    doing: h("p", { className: "doing" }),
    meter: h("progress", { className: "meter", max: 1, value: 0 }),
    slots: h("dd"),
    queue: h("dd"),
    speed: h("dd"),
    keep: h("dd"),
    replicas: h("ul", { className: "replicas", tabIndex: 0, ariaLabel: `Replicas of ${model.name}` }),
    actions: makeActions(model.name),
  };
  const figures = [
    ["Slots", made.slots],
    ["Queue", made.queue],
    ["Tokens/s", made.speed],
    ["Kept", made.keep],
  ];
  const card = h(
    "article",
    { className: "card model", ariaLabel: `Model ${model.name}` },
    h(
      "header",
      { className: "row" },
      h("i", { className: `swatch weights ${hueOf(model.name)}`, ariaHidden: "true" }),
      h("h3", { title: model.name }, model.name),
      made.state,
      h("span", { className: "push" }),
      made.actions.row,
    ),
    made.facts,
    h(
      "dl",
      { className: "figures small" },
      figures.map(([name, value]) => h("div", {}, h("dt", {}, name), value)),
    ),
    h("div", { className: "load" }, made.meter, h("div", { className: "line" }, made.doing, made.actions.problem)),
    made.replicas,
  );
  made.meter.setAttribute("aria-label", `Load of ${model.name}`);
  card.made = made;
  return card;
}

function drawModel(card, model) {
  const made = card.made;
  const state = stateOf(model);
  say(made.state, state);
  mark(made.state, "data-state", state);
  const facts = [
    model.title,
    model.architecture,
    model.parameters,
    model.quantization,
    bytes(model.size_bytes),
    `${number(model.context_tokens)} tokens trained`,
    ...model.capabilities,
  ];
  say(made.facts, facts.filter((word) => word && word !== model.name).join(" · "));
  const ready = model.replicas.filter((replica) => replica.state === "ready");
  const sum = (name) => ready.reduce((total, replica) => total + replica[name], 0);
  say(made.slots, ready.length ? `${sum("slots_busy")} of ${sum("slots_total")}` : "–");
  say(made.queue, model.waiting ? `${number(model.waiting)} · ${wait(now() - model.waiting_since_unix_ms)}` : "0");
  say(made.speed, number(model.tokens_per_s, 1));
  say(made.keep, keptFor(model));
  drawLoad(made, model);
  sync(made.replicas, model.replicas, (replica) => `${replica.id}/${replica.generation}`, makeReplica, drawReplica);
  drawActions(made.actions, model);
}

function stateOf(model) {
  if (model.error) return "broken";
  const states = new Set(model.replicas.map((replica) => replica.state));
  for (const state of ["ready", "loading", "draining", "broken"]) if (states.has(state)) return state;
  if (model.waiting) return "asked for";
  return crashesOf(model).length ? "crashes" : "not loaded";
}

function drawLoad(made, model) {
  const loading = model.replicas.filter((replica) => replica.state === "loading");
  const fraction = loading.length ? Math.max(...loading.map((replica) => replica.fraction ?? 0)) : null;
  mark(made.meter, "data-active", fraction !== null || (!model.replicas.length && model.waiting > 0));
  if (fraction === null && !model.replicas.length && model.waiting) made.meter.removeAttribute("value");
  else if (made.meter.value !== (fraction ?? 0)) made.meter.value = fraction ?? 0;
  say(made.doing, doing(model, loading, fraction));
  mark(made.doing, "title", made.doing.textContent || null);
  mark(made.doing, "data-unusable", Boolean(model.error));
}

function doing(model, loading, fraction) {
  if (model.error) return model.error;
  const left = model.load?.ready_at_unix_ms ? model.load.ready_at_unix_ms - now() : null;
  if (fraction !== null) {
    const nodes = loading.map((replica) => replica.node).join(", ");
    const verb = model.load?.waits_for ? `Waits for ${model.load.waits_for}, then loads on` : "Loading on";
    return `${verb} ${nodes}: ${percent(fraction)}${about(left ?? ownPace(loading))}`;
  }
  if (model.load?.waits_for && model.waiting) {
    const who = model.replicas.length ? "Another replica waits" : "Waits";
    return `${who} for ${model.load.waits_for}${about(left)}`;
  }
  const crashes = crashesOf(model);
  if (crashes.length && !model.replicas.some((replica) => replica.state === "ready")) {
    return crashes.map((row) => `On ${row.node} it ${crashText(row, now())}`).join(" · ");
  }
  const broken = model.replicas.find((replica) => replica.state === "broken");
  if (broken) return broken.reason ?? "A replica is broken";
  if (!model.replicas.length && model.waiting) return "Finding a place for it";
  if (model.running) return `${plural(model.running, "request")} answered now`;
  return model.replicas.length ? "Idle" : "";
}

function crashesOf(model) {
  const rows = sorted("nodes").flatMap((node) => node.crash_rows ?? []);
  return rows.filter((row) => row.model === model.name);
}

// If no request here waits for the load, its own pace is all that is known.
function ownPace(loading) {
  const seconds = loading.find((replica) => replica.load_seconds_left !== null)?.load_seconds_left;
  return seconds === undefined ? null : seconds * 1000;
}

// A load that takes longer than was thought says nothing rather than 0 s.
function about(left_ms) {
  return left_ms === null || left_ms < 500 ? "" : `, about ${wait(left_ms)} left`;
}

function keptFor(model) {
  if (model.wanted?.constraints.pinned) return "Pinned";
  const ready = model.replicas.filter((replica) => replica.state === "ready");
  if (!ready.length) return "–";
  const ends = ready.map((replica) => replica.expires_at_unix_ms);
  if (ends.some((end) => end === null)) return ready.some((replica) => replica.slots_busy) ? "In use" : "For ever";
  return wait(Math.max(...ends) - now());
}

function now() {
  return Date.now() + store.skew_ms;
}

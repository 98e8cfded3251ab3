// Machines and their devices: what lies where, how much is free, and who said so when.

import { onAccess } from "./access.js";
import { h, mark, say, sync } from "./dom.js";
import { bytes, crashText, duration, number, plural } from "./format.js";
import { drawBar, drawLegend, makeBar, makeLegend } from "./membar.js";
import { drawClear, drawNodeActions, makeClear, makeNodeActions } from "./node_actions.js";
import { sorted, store, watch } from "./store.js";

const parts = {};

export function startFleet(view) {
  parts.figures = h("dl", { className: "figures", ariaLabel: "The fleet in figures" });
  parts.nodes = h("div", { className: "nodes" });
  parts.empty = h("p", { className: "empty" });
  view.append(h("h2", { className: "unseen" }, "Fleet"), parts.figures, key(), parts.nodes, parts.empty);
  watch(draw);
  onAccess(draw);
  draw();
}

// The classes, once for all bars.
function key() {
  const names = ["weights", "cache", "graph", "other", "promised", "free", "reserve"];
  return h(
    "ul",
    { className: "key", ariaLabel: "What the bars show" },
    names.map((name) => h("li", {}, h("i", { className: `swatch ${name}`, ariaHidden: "true" }), name)),
  );
}

function draw() {
  const nodes = sorted("nodes", (node) => node.id);
  const devices = nodes.flatMap((node) => node.devices.filter((device) => device.total_bytes));
  const usable = devices.filter((device) => device.state === "ok" && !device.backing_pool);
  const sum = (name) => usable.reduce((total, device) => total + device[name], 0);
  drawFigures([
    ["Nodes", number(nodes.length)],
    ["Devices", number(devices.length)],
    ["Memory", bytes(sum("total_bytes"))],
    ["Free", bytes(sum("free_bytes"))],
    ["Loaded", plural([...store.models.values()].filter((model) => model.replicas.length).length, "model")],
  ]);
  sync(parts.nodes, nodes, (node) => node.id, makeNode, drawNode);
  parts.empty.hidden = nodes.length > 0;
  say(parts.empty, store.heardAt ? "No node has registered. Start a host, and it appears here." : store.silence);
}

function drawFigures(figures) {
  sync(
    parts.figures,
    figures,
    ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
    (item, [, value]) => say(item.lastElementChild, store.heardAt ? value : "–"),
  );
}

function makeNode(node) {
  const made = {
    name: h("h3", {}, node.id),
    state: h("span", { className: "badge" }),
    facts: h("p", { className: "facts" }),
    crashes: h("p", { className: "reason" }),
    devices: h("div", { className: "devices" }),
    actions: makeNodeActions(node.id),
  };
  const card = h(
    "article",
    { className: "card node", ariaLabel: `Node ${node.id}` },
    h("header", { className: "row" }, made.name, made.state, h("span", { className: "push" }), made.actions.row),
    made.facts,
    made.crashes,
    made.devices,
  );
  card.made = made;
  return card;
}

function drawNode(card, node) {
  const { state, facts, crashes, devices, actions } = card.made;
  say(state, node.state);
  mark(state, "data-state", node.state);
  say(
    facts,
    [
      node.draining_replicas ? `${plural(node.draining_replicas, "replica")} left` : "",
      node.address,
      node.build,
      ...(node.states ?? [])
        .filter((tier) => tier.states)
        .map((tier) => `${plural(tier.states, "conversation")} saved in ${tier.tier}: ${bytes(tier.bytes)} of ${bytes(tier.max_bytes)}`),
      `heard ${duration(node.report_age_ms)} ago`,
    ]
      .filter(Boolean)
      .join(" · "),
  );
  const now = Date.now() + store.skew_ms;
  say(crashes, (node.crash_rows ?? []).map((row) => `${row.model} ${crashText(row, now)}`).join(" · "));
  crashes.hidden = !crashes.textContent;
  sync(
    devices,
    node.devices.filter((device) => device.total_bytes),
    (device) => device.id,
    makeDevice,
    (card, device) => drawDevice(card, device, node),
  );
  drawNodeActions(actions, node);
}

function makeDevice(device) {
  const made = {
    name: h("h4", {}),
    kind: h("span", { className: "faint kind" }),
    state: h("span", { className: "badge" }),
    free: h("span", { className: "free" }),
    source: h("span", { className: "source faint" }),
    vitals: h("p", { className: "faint" }),
    reason: h("p", { className: "reason" }),
    clear: makeClear(),
    bar: makeBar(),
    legend: makeLegend(),
  };
  const card = h(
    "section",
    { className: "device" },
    h(
      "div",
      { className: "row" },
      made.name,
      made.kind,
      made.state,
      h("span", { className: "push" }),
      made.clear.button,
      made.free,
    ),
    made.bar,
    h("div", { className: "row under" }, made.legend, made.source),
    made.vitals,
    made.reason,
    made.clear.problem,
  );
  card.made = made;
  mark(card, "aria-label", `Device ${device.name}`);
  return card;
}

function conditionWords(vitals) {
  const given = (value) => value !== null && value !== undefined;
  return [
    given(vitals.utilization) && `${Math.round(100 * vitals.utilization)} % busy`,
    given(vitals.temperature_c) && `${vitals.temperature_c} °C`,
    given(vitals.power_w) && `${Math.round(vitals.power_w)} W`,
    vitals.throttled?.length && `throttled: ${vitals.throttled.join(", ")}`,
    vitals.ecc_uncorrected && `${vitals.ecc_uncorrected} uncorrected ECC errors`,
    vitals.last_xid && `Xid ${vitals.last_xid}, ${duration(Date.now() - 1000 * vitals.last_xid_at_unix_s)} ago`,
  ].filter(Boolean);
}

function drawDevice(card, device, node) {
  const { name, kind, state, free, source, vitals, reason, bar, legend } = card.made;
  say(name, device.name);
  say(
    kind,
    [device.library, device.description, device.class]
      .filter((word, at, all) => word && all.indexOf(word) === at && word !== device.name)
      .join(" · "),
  );
  mark(kind, "title", [device.id, device.pci_id, device.driver].filter(Boolean).join(" · "));
  say(state, device.state);
  mark(state, "data-state", device.state);
  say(free, `${bytes(device.free_bytes)} free of ${bytes(device.total_bytes)}`);
  say(source, `${device.trust} · ${device.free_source || "no source"} · ${duration(device.free_age_ms)} ago`);
  mark(source, "data-trust", device.trust);
  const condition = conditionWords(device.vitals || {});
  say(vitals, condition.join(" · "));
  vitals.hidden = condition.length === 0;
  const words = [
    device.state_reason,
    device.check_last_line,
    device.max_bytes ? `limit ${bytes(device.max_bytes)}` : "",
  ].filter(Boolean);
  say(reason, words.join(" · "));
  reason.hidden = words.length === 0;
  drawBar(bar, device);
  drawLegend(legend, device);
  drawClear(card.made.clear, node, device);
}

// One place that was considered: for each of its devices, what is needed above what may be taken, on one scale for all.

import { h, mark, s } from "./dom.js";
import { bytes, duration, number, plural } from "./format.js";

const WIDTH = 1000;
const ROW = 14;
const GAP = 4;
const NEEDS = [
  ["weights", "weights_bytes"],
  ["weights", "projector_bytes"],
  ["cache", "cache_bytes"],
  ["graph", "graph_bytes"],
  ["other", "reserve_bytes"],
  ["reserve", "margin_bytes"],
];

// `most` is the largest figure of the whole answer, so that bars can be compared.
export function candidateCard(candidate, most) {
  const verdict = h("span", { className: "badge" }, candidate.verdict.replaceAll("_", " "));
  mark(verdict, "data-state", candidate.verdict);
  const facts = [
    candidate.slots ? plural(candidate.slots, "slot") : "",
    candidate.context_length ? `${number(candidate.context_length)} tokens` : "",
    candidate.layers ? plural(candidate.layers, "layer") + " on devices" : "",
    candidate.seconds_per_token ? `${speed(1 / candidate.seconds_per_token)} tokens/s expected` : "",
    candidate.estimated ? "estimated, not measured" : "",
  ];
  return h(
    "article",
    {
      className: `card candidate ${candidate.verdict}`,
      ariaLabel: `Candidate ${candidate.node}, ${candidate.shape}: ${candidate.verdict}`,
    },
    h(
      "header",
      { className: "row" },
      h("h4", {}, candidate.node),
      h("span", { className: "faint" }, candidate.shape.replaceAll("_", " ")),
      verdict,
    ),
    h("p", { className: "facts" }, facts.filter(Boolean).join(" · ")),
    candidate.reason && h("p", { className: "reason" }, candidate.reason),
    candidate.devices.map((device) => deviceRow(device, most)),
  );
}

// A tenth matters to who gets three a second, not to who gets thousands.
function speed(tokens_per_s) {
  return number(tokens_per_s, tokens_per_s < 100 ? 1 : 0);
}

function deviceRow(device, most) {
  const short = device.need_bytes - device.available_bytes;
  const verdict = device.need_bytes === 0 ? "" : short > 0 ? `${bytes(short)} short` : `${bytes(-short)} to spare`;
  return h(
    "div",
    { className: "need" },
    h(
      "div",
      { className: "row" },
      h("strong", {}, device.name),
      h("span", { className: "faint" }, device.layers ? plural(device.layers, "layer") : ""),
      h("span", { className: "push" }),
      h("span", { className: short > 0 ? "short" : "fits" }, verdict),
    ),
    h("div", { className: "scaled faint" }, h("span", {}, "need"), picture(device, most), h("span", {}, "there")),
    h("p", { className: "facts" }, sums(device)),
  );
}

function sums(device) {
  const need = NEEDS.map(([, name]) => [name.replace("_bytes", ""), device[name]]).filter(([, count]) => count);
  const parts = need.map(([name, count]) => `${name === "reserve" ? "process" : name} ${bytes(count)}`).join(" + ");
  const age = device.free_source ? ` (${device.free_source}, ${duration(device.free_age_ms)} old)` : "";
  const asked = device.need_bytes ? `Need ${bytes(device.need_bytes)}${parts ? ` = ${parts}` : ""}. ` : "";
  const rest = device.free_bytes - device.overhead_bytes - device.promised_bytes;
  const limit =
    rest - device.available_bytes > 1024 ** 2 ? ", of which a limit leaves " + bytes(device.available_bytes) : "";
  return `${asked}There: ${bytes(limit ? Math.max(rest, 0) : device.available_bytes)} = free ${bytes(device.free_bytes)}${age} − reserve ${bytes(device.overhead_bytes)} − promised ${bytes(device.promised_bytes)}${limit}.`;
}

// What is free, as far as it counts: a limit that an operator set makes the rest invisible to placement.
export function thereBytes(device) {
  return Math.min(device.free_bytes, device.available_bytes + device.overhead_bytes + device.promised_bytes);
}

function picture(device, most) {
  const scale = (count) => (count / most) * WIDTH;
  const drawing = s("svg", {
    class: "needbar",
    viewBox: `0 0 ${WIDTH} ${2 * ROW + GAP}`,
    preserveAspectRatio: "none",
    role: "img",
  });
  mark(drawing, "aria-label", `${device.name}: needs ${bytes(device.need_bytes)} of ${bytes(device.available_bytes)}`);
  let left = 0;
  const piece = (kind, count, top) => {
    drawing.append(
      s("rect", {
        class: `piece ${kind} hue-0`,
        x: left.toFixed(2),
        y: top,
        width: scale(count).toFixed(2),
        height: ROW,
      }),
    );
    left += scale(count);
  };
  for (const [kind, name] of NEEDS) piece(kind, device[name], 0);
  left = 0;
  piece("there", device.available_bytes, ROW + GAP);
  const kept = thereBytes(device) - device.available_bytes;
  const promised = Math.min(device.promised_bytes, kept);
  piece("promised", promised, ROW + GAP);
  piece("reserve", kept - promised, ROW + GAP);
  const limit = scale(device.available_bytes);
  if (device.need_bytes > device.available_bytes)
    drawing.append(
      s("rect", {
        class: "beyond",
        x: limit.toFixed(2),
        y: 0,
        width: (scale(device.need_bytes) - limit).toFixed(2),
        height: ROW,
      }),
    );
  return drawing;
}

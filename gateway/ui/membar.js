// One device's memory as a bar: what lies there by model and class, what others took, what is promised, free and kept back.

import { h, mark, s, say, sync } from "./dom.js";
import { bytes } from "./format.js";
import { hueOf } from "./hues.js";

const WIDTH = 1000;
const HEIGHT = 20;
const CLASSES = ["weights", "cache", "graph"];

// The pieces of a bar, left to right; their bytes add up to the device's total.
export function piecesOf(device) {
  const total = device.total_bytes;
  const pieces = [];
  for (const held of device.holds) {
    for (const name of CLASSES)
      pieces.push({ kind: name, model: held.model, placement: held.placement, bytes: held[`${name}_bytes`] });
  }
  const held = pieces.reduce((sum, piece) => sum + piece.bytes, 0);
  const free = Math.max(Math.min(device.free_bytes, total - held), 0);
  const other = Math.max(total - free - held, 0);
  const promised = Math.min(Math.max(device.promised_bytes - held, 0), free);
  const reserve = Math.min(device.reserve_bytes, free - promised);
  pieces.push({ kind: "other", bytes: other }, { kind: "promised", bytes: promised });
  pieces.push({ kind: "free", bytes: free - promised - reserve }, { kind: "reserve", bytes: reserve });
  return pieces.filter((piece) => piece.bytes > 0);
}

export function makeBar() {
  const bar = s("svg", {
    class: "membar",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
  });
  return bar;
}

export function drawBar(bar, device) {
  const pieces = piecesOf(device);
  let left = 0;
  const placed = pieces.map((piece) => {
    const width = (piece.bytes / device.total_bytes) * WIDTH;
    const at = { ...piece, left, width };
    left += width;
    return at;
  });
  sync(
    bar,
    placed,
    (piece) => `${piece.placement ?? ""} ${piece.kind}`,
    () => s("rect", { height: HEIGHT, y: 0 }, s("title")),
    (rect, piece) => {
      mark(rect, "class", `piece ${piece.kind} ${piece.model === undefined ? "" : hueOf(piece.model)}`);
      mark(rect, "x", piece.left.toFixed(2));
      mark(rect, "width", Math.max(piece.width, piece.model === undefined ? 0 : 2).toFixed(2));
      say(rect.firstElementChild, `${labelOf(piece)}: ${bytes(piece.bytes)}`);
    },
  );
  mark(
    bar,
    "aria-label",
    `Memory of ${device.name}: ${pieces.map((piece) => `${labelOf(piece)} ${bytes(piece.bytes)}`).join(", ")}`,
  );
}

function labelOf(piece) {
  const names = { other: "Other programs", promised: "Promised to loads", free: "Free", reserve: "Reserve" };
  return names[piece.kind] ?? `${piece.model ?? "another model"}, ${piece.kind}`;
}

// Beside the bar in words: each model with its bytes, then what is free.
export function makeLegend() {
  return h("ul", { className: "legend", tabIndex: 0, ariaLabel: "What lies there" });
}

export function drawLegend(list, device) {
  const other = piecesOf(device).find((piece) => piece.kind === "other");
  const items = other ? [{ id: "other", hue: "", name: "Other programs", parts: [["other", other.bytes]] }] : [];
  for (const held of device.holds)
    items.push({
      id: held.placement ?? `${held.model}`,
      hue: hueOf(held.model),
      name: held.model ?? "another model",
      parts: CLASSES.map((name) => [name, held[`${name}_bytes`]]).filter(([, count]) => count),
    });
  sync(
    list,
    items,
    (item) => item.id,
    (item) => h("li", {}, h("span", { className: "who" }), h("span", { className: "parts" })),
    (line, item) => {
      mark(line, "class", item.hue);
      say(line.firstElementChild, item.name);
      sync(
        line.lastElementChild,
        item.parts,
        ([name]) => name,
        ([name]) =>
          h(
            "span",
            {},
            h("i", { className: `swatch ${name}`, ariaHidden: "true" }),
            name !== "other" && h("span", { className: "class" }, `${name} `),
            h("span"),
          ),
        (part, [, count]) => say(part.lastElementChild, bytes(count)),
      );
    },
  );
  if (!list.childElementCount)
    list.append(Object.assign(h("li", { className: "faint" }, "Nothing lies here"), { made: { key: "" } }));
}

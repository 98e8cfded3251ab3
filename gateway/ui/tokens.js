// The text of an answer as its tokens. Hovering or focusing one shows what else it might have been.

import { h, mark } from "./dom.js";
import { probability } from "./format.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1];
const known = new WeakMap(); // element: its entry of the answer
const blanks = new WeakMap(); // area: its last pieces, if they are empty
let box = null;

// Tab goes to one token of a text, arrow keys from there to the others.
export function startTokens(area) {
  area.addEventListener("keydown", onKey);
  area.addEventListener("focusin", (event) => known.has(event.target) && showAlternatives(event.target));
  area.addEventListener("focusout", hideAlternatives);
  area.addEventListener("pointerover", (event) => known.has(event.target) && showAlternatives(event.target));
  area.addEventListener("pointerleave", hideAlternatives);
}

// Tokens of markers are not in the text: an entry whose text does not come next is passed over.
export function addTokens(area, text, entries) {
  let left = text;
  for (const entry of entries) {
    if (!entry.token || !left.startsWith(entry.token)) continue;
    show(area, tokenOf(entry));
    left = left.slice(entry.token.length);
  }
  if (left) show(area, document.createTextNode(left));
}

// Empty lines are shown once something follows them: at the end they are only the model's way of ending.
function show(area, piece) {
  const held = [...(blanks.get(area) ?? []), piece];
  if (piece.textContent.trim()) {
    area.append(...held);
    blanks.delete(area);
    if (!area.querySelector(".token[tabindex='0']")) area.querySelector(".token")?.setAttribute("tabindex", "0");
  } else blanks.set(area, held);
}

function tokenOf(entry) {
  const token = h("span", { className: `token p${levelOf(entry.logprob)}` }, entry.token);
  token.tabIndex = -1;
  known.set(token, entry);
  return token;
}

function levelOf(logprob) {
  const chance = Math.exp(logprob);
  const level = LEVELS.findIndex((least) => chance >= least);
  return level < 0 ? LEVELS.length : level;
}

function onKey(event) {
  const steps = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" };
  if (!known.has(event.target) || !(event.key in steps)) return;
  event.preventDefault();
  const next = event.target[steps[event.key]];
  if (!next) return;
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function showAlternatives(token) {
  const entry = known.get(token);
  if (!box) {
    box = h("div", { className: "alternatives", role: "tooltip", id: "alternatives", hidden: true });
    document.body.append(box);
  }
  const others = entry.top_logprobs.length ? entry.top_logprobs : [entry];
  const rows = others.map((other) => rowOf(other, other.token === entry.token));
  if (!others.some((other) => other.token === entry.token)) rows.push(rowOf(entry, true));
  box.replaceChildren(
    h("p", {}, h("code", {}, shown(entry.token)), ` ${probability(entry.logprob)}`),
    h("ol", {}, rows),
  );
  box.hidden = false;
  place(box, token.getBoundingClientRect());
  mark(document.querySelector("[aria-describedby=alternatives]") ?? token, "aria-describedby", null);
  mark(token, "aria-describedby", "alternatives");
}

function rowOf(other, chosen) {
  const meter = h("meter", { min: 0, max: 1, value: Math.exp(other.logprob), ariaHidden: "true" });
  return h(
    "li",
    { className: chosen ? "chosen" : "" },
    h("code", {}, shown(other.token)),
    meter,
    h("span", {}, probability(other.logprob)),
  );
}

// True if something was hidden.
export function hideAlternatives() {
  const was = Boolean(box && !box.hidden);
  if (box) box.hidden = true;
  return was;
}

function place(element, around) {
  const width = element.offsetWidth;
  const below = around.bottom + element.offsetHeight + 8 < innerHeight;
  element.style.left = `${Math.max(Math.min(around.left, innerWidth - width - 8), 8)}px`;
  element.style.top = `${below ? around.bottom + 4 : around.top - element.offsetHeight - 4}px`;
}

function shown(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

// Second names of models: which name means which model, and whether that is there.

import { may, onAccess } from "./access.js";
import { json } from "./api.js";
import { h, mark, say, sync } from "./dom.js";
import { currentView, onView } from "./tabs.js";

const AGAIN_MS = 10_000;
const parts = {};

export function makeAliases() {
  parts.list = h("ul", { ariaLabel: "Second names" });
  parts.card = h("section", { className: "card aliases", hidden: true }, h("h3", {}, "Second names"), parts.list);
  onAccess(look);
  onView(look);
  setInterval(look, AGAIN_MS);
  return parts.card;
}

async function look() {
  if (currentView() !== "models" || document.hidden || !may("models:read")) return;
  let aliases;
  try {
    ({ aliases } = await json("/puna/v1/aliases"));
  } catch {
    return; // what was known stays; that the gateway is silent is said at the top of the page
  }
  sync(
    parts.list,
    aliases,
    (one) => one.alias,
    () =>
      h("li", { className: "row" }, h("strong"), h("span", { className: "faint" }), h("span", { className: "badge" })),
    draw,
  );
  parts.card.hidden = aliases.length === 0;
}

function draw(line, one) {
  const [name, model, state] = line.children;
  say(name, one.alias);
  say(model, `means ${one.model}`);
  say(state, "missing");
  mark(state, "data-state", "lost");
  state.hidden = one.exists;
}

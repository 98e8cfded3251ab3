// Each model keeps its colour on the whole page, in the order in which models were first seen.

const COUNT = 6;
const known = new Map();

export function hueOf(model) {
  if (!model) return "hue-none";
  if (!known.has(model)) known.set(model, known.size % COUNT);
  return `hue-${known.get(model)}`;
}

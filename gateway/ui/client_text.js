// Fills in a text of the table of clients, by the rules of cli/core/connect/client.py.

import { gatewayUrl, key } from "./api.js";

const NO_KEY = "unused";
const SHOWN_KEY = "your-key"; // the key itself is never on the page
const CONDITION = /^\{\{([?!])(\w+)\}\}/;

export function filled(text, { client, model, context, capabilities }) {
  const words = {
    url: gatewayUrl(""),
    model,
    context,
    output: Math.max(Math.min(client.output, Math.floor(context / 4)), 1),
    key: key.get() ? SHOWN_KEY : "",
    tools: capabilities.includes("tools"),
    images: capabilities.includes("vision"),
  };
  return text
    .split("\n")
    .flatMap((line) => {
      const found = CONDITION.exec(line);
      if (!found) return [line];
      return Boolean(words[found[2]]) === (found[1] === "?") ? [line.slice(found[0].length)] : [];
    })
    .join("\n")
    .replace(/\{\{(\w+)\}\}/g, (_, name) => String(name === "key" ? words.key || NO_KEY : words[name]));
}

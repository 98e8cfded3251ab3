// The same request for a shell and for Python. The key is named, never written out.

import { gatewayUrl, key } from "./api.js";

export function asCurl(body) {
  const lines = [`curl ${gatewayUrl("/v1/chat/completions")}`, "-H 'Content-Type: application/json'"];
  if (key.get()) lines.push('-H "Authorization: Bearer $PUNA_API_KEY"');
  lines.push(`-d '${JSON.stringify(body, null, 2).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

const OWN = new Set(["top_k", "options"]);

export function asPython(body) {
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => OWN.has(name)));
  const plain = Object.entries(body).filter(([name]) => !OWN.has(name));
  const keyText = key.get() ? 'os.environ["PUNA_API_KEY"]' : '"unused"';
  return [
    ...(key.get() ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${gatewayUrl("/v1")}", api_key=${keyText})`,
    "answer = client.chat.completions.create(",
    ...plain.map(([name, value]) => `    ${name}=${python(value)},`),
    ...(Object.keys(extra).length ? [`    extra_body=${python(extra)},`] : []),
    ")",
    "print(answer.choices[0].message.content)",
    "",
  ].join("\n");
}

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, item]) => `${JSON.stringify(name)}: ${python(item)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

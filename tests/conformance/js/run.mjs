// Runs the cases with the npm packages and writes one line of JSON for each. `node run.mjs FACTS.json [--only TEXT]`.
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { ollamaCases } from "./ollama_cases.mjs";
import { openaiCases } from "./openai_cases.mjs";

const facts = JSON.parse(readFileSync(process.argv[2], "utf8"));
const only = process.argv[3] === "--only" ? process.argv[4] ?? "" : "";
const versionOf = (name) =>
  JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url), "utf8")).version;

function talkOf(dialect, stageName, stream) {
  const stage = facts.stages[stageName];
  const api =
    dialect === "openai"
      ? new OpenAI({ baseURL: `${stage.url}/v1`, apiKey: stage.key, maxRetries: 0 })
      : new Ollama({ host: stage.url, headers: { Authorization: `Bearer ${stage.key}` } });
  return { api, stream, facts, url: stage.url, key: stage.key };
}

let failures = 0;
for (const [dialect, cases] of [["openai", openaiCases], ["ollama", ollamaCases]]) {
  for (const { name, modes = ["whole", "stream"], stage = "open", run } of cases) {
    if (!`${dialect}: ${name}`.includes(only)) continue;
    for (const mode of modes) {
      let why = "";
      try {
        await run(talkOf(dialect, stage, mode === "stream"));
      } catch (error) {
        why = `${error?.constructor?.name}: ${error?.message}`.slice(0, 500);
        console.error(`${dialect}: ${name}`, error);
        failures += 1;
      }
      console.log(JSON.stringify({ case: `${dialect}: ${name}`, client: "node", mode, why, version: versionOf(dialect) }));
    }
  }
}
process.exit(failures > 0 ? 1 : 0);

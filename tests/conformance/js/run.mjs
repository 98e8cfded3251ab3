// Runs the cases with the npm packages and writes one line of JSON for each. `node run.mjs FACTS.json [--only TEXT]`.
import { readFileSync } from "node:fs";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { featureCases } from "./ollama_cases.mjs";
import { errorCases as ollamaErrors } from "./ollama_errors.mjs";
import { chatCases } from "./openai_cases.mjs";
import { errorCases } from "./openai_errors.mjs";
import { otherCases } from "./openai_others.mjs";

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

const SECONDS_MAX = 240; // of one case; most take less than one
const noEnd = () =>
  new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`no end within ${SECONDS_MAX} s`)), SECONDS_MAX * 1000).unref();
  });

let failures = 0;
const CASES = { ollama: [...featureCases, ...ollamaErrors], openai: [...chatCases, ...otherCases, ...errorCases] };
for (const [dialect, cases] of Object.entries(CASES)) {
  for (const { name, modes = ["whole", "stream"], stage = "open", run } of cases) {
    if (!`${dialect}: ${name}`.includes(only) || !(stage in facts.stages)) continue;
    for (const mode of modes) {
      let why = "";
      try {
        await Promise.race([run(talkOf(dialect, stage, mode === "stream")), noEnd()]);
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

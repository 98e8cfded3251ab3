// Vercel AI SDK with two of its providers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { checkPerson, checkTool, double, model, personQuestion, run, stream, toolQuestion, url } from "./task.mjs";

const compatible = createOpenAICompatible({
  name: "puna",
  baseURL: `${url}/v1`,
  apiKey: "any",
  supportsStructuredOutputs: true,
})(model);
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" })(model);
const schema = z.object({ name: z.string(), age: z.number().int() });

async function toolCall(chosen) {
  const options = {
    model: chosen,
    prompt: toolQuestion,
    tools: {
      double: tool({ description: "Double a number.", inputSchema: z.object({ number: z.number() }), execute: double }),
    },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  };
  if (!stream) {
    checkTool((await generateText(options)).text);
    return;
  }
  const result = streamText(options);
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  checkTool(pieces.join(""), pieces.length);
}

async function structured(chosen) {
  const options = { model: chosen, prompt: personQuestion, output: Output.object({ schema }), maxRetries: 0 };
  if (!stream) {
    checkPerson((await generateText(options)).output);
    return;
  }
  let last;
  for await (const part of streamText(options).partialOutputStream) last = part;
  checkPerson(last);
}

await run({
  "Chat completions: tool call": () => toolCall(compatible),
  "Messages: tool call": () => toolCall(anthropic),
  "Chat completions: structured output": () => structured(compatible),
});

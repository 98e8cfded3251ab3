// LangChain's agents in JavaScript with two dialects.
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { z } from "zod";
import { checkPerson, checkTool, double, model, personQuestion, run, stream, toolQuestion, url } from "./task.mjs";

const openai = () => new ChatOpenAI({ model, apiKey: "any", configuration: { baseURL: `${url}/v1` }, maxRetries: 0 });
const ollama = () => new ChatOllama({ model, baseUrl: url });

async function toolCall(chosen) {
  const doubler = tool((input) => String(double(input)), {
    name: "double",
    description: "Double a number.",
    schema: z.object({ number: z.number() }),
  });
  const agent = createAgent({ model: chosen, tools: [doubler] });
  const question = { messages: [{ role: "user", content: toolQuestion }] };
  if (!stream) {
    checkTool((await agent.invoke(question)).messages.at(-1).text);
    return;
  }
  const pieces = [];
  for await (const [message] of await agent.stream(question, { streamMode: "messages" })) {
    if (message.getType() === "ai" && message.text) pieces.push(message.text);
  }
  checkTool(pieces.join(""), pieces.length);
}

async function structured() {
  const schema = z.object({ name: z.string(), age: z.number() });
  checkPerson(await openai().withStructuredOutput(schema, { method: "jsonSchema" }).invoke(personQuestion));
}

await run({
  "Chat completions: tool call": () => toolCall(openai()),
  "Ollama: tool call": () => toolCall(ollama()),
  "Chat completions: structured output": structured,
});

"""The agents of OpenAI's SDK with both of its dialects."""

import asyncio

from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from task import MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run

CLIENT = AsyncOpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)


def chat_completions_tool_call() -> None:
    asyncio.run(_tool(OpenAIChatCompletionsModel(model=MODEL, openai_client=CLIENT)))


def responses_tool_call() -> None:
    asyncio.run(_tool(OpenAIResponsesModel(model=MODEL, openai_client=CLIENT)))


async def _tool(model: Model) -> None:
    set_tracing_disabled(disabled=True)
    agent = Agent(name="Doubler", model=model, tools=[function_tool(double)])
    if not STREAM:
        check_tool((await Runner.run(agent, TOOL_QUESTION)).final_output)
        return
    result = Runner.run_streamed(agent, TOOL_QUESTION)
    pieces = 0
    async for event in result.stream_events():
        pieces += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    check_tool(result.final_output, pieces=pieces)


run(chat_completions_tool_call, responses_tool_call)

"""Haystack: its agent over a generator of OpenAI's form."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from task import MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run


def chat_completions_tool_call() -> None:
    pieces: list[str] = []

    def keep(chunk: StreamingChunk) -> None:
        if chunk.content:
            pieces.append(chunk.content)

    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("any"), model=MODEL, api_base_url=f"{URL}/v1", max_retries=0
    )
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(double)])
    result = agent.run(messages=[ChatMessage.from_user(TOOL_QUESTION)], streaming_callback=keep if STREAM else None)
    check_tool(result["last_message"].text, pieces=len(pieces))


run(chat_completions_tool_call)

"""pydantic-ai with three dialects."""

import asyncio

from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.output import NativeOutput
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from task import MODEL, PERSON_TEXT, STREAM, TOOL_QUESTION, URL, check_person, check_tool, double, run

OPENAI = OpenAIProvider(base_url=f"{URL}/v1", api_key="any")


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def chat_completions_tool_call() -> None:
    asyncio.run(_tool(OpenAIChatModel(MODEL, provider=OPENAI)))


def responses_tool_call() -> None:
    asyncio.run(_tool(OpenAIResponsesModel(MODEL, provider=OPENAI)))


def messages_tool_call() -> None:
    client = AsyncAnthropic(base_url=URL, api_key="any", max_retries=0)
    asyncio.run(_tool(AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))))


def chat_completions_structured_output() -> None:
    agent = Agent(OpenAIChatModel(MODEL, provider=OPENAI), output_type=NativeOutput(Person))
    person = agent.run_sync(f"Describe the person. ⟪say {PERSON_TEXT}⟫").output
    check_person(person.name, person.age)


def chat_completions_structured_output_by_a_tool() -> None:
    agent = Agent(OpenAIChatModel(MODEL, provider=OPENAI), output_type=Person)
    person = agent.run_sync(f"Describe the person. ⟪call final_result {PERSON_TEXT}⟫").output
    check_person(person.name, person.age)


async def _tool(model: Model) -> None:
    agent = Agent(model, tools=[double])
    if STREAM:
        async with agent.run_stream(TOOL_QUESTION) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        check_tool("".join(pieces), pieces=len(pieces))
    else:
        check_tool((await agent.run(TOOL_QUESTION)).output)


run(
    chat_completions_tool_call,
    responses_tool_call,
    messages_tool_call,
    chat_completions_structured_output,
    chat_completions_structured_output_by_a_tool,
)

"""LiteLLM with the dialects that it speaks, and the exception that its fallbacks wait for."""

import json
from typing import Any

import litellm
from task import DOUBLE, MODEL, STREAM, TOOL_QUESTION, URL, check_tool, double, run


def chat_completions_tool_call() -> None:
    _tool(model=f"openai/{MODEL}", api_base=f"{URL}/v1")


def messages_tool_call() -> None:
    _tool(model=f"anthropic/{MODEL}", api_base=URL)


def ollama_tool_call() -> None:
    _tool(model=f"ollama_chat/{MODEL}", api_base=URL)


def chat_completions_overflow() -> None:
    messages = [{"role": "user", "content": "word " * 400_000}]
    try:
        litellm.completion(
            model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="any", messages=messages, max_retries=0
        )
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("no ContextWindowExceededError")


def _tool(**where: str) -> None:
    messages: list[Any] = [{"role": "user", "content": TOOL_QUESTION}]
    pieces = 0
    for _ in range(2):
        answer: Any = litellm.completion(
            **where, api_key="any", messages=messages, tools=[DOUBLE], stream=STREAM, max_retries=0
        )
        if STREAM:
            chunks = list(answer)
            pieces = len(chunks)
            answer = litellm.stream_chunk_builder(chunks, messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            result = double(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": "double", "content": str(result)})
    check_tool(messages[-1].content, pieces=pieces)


run(chat_completions_tool_call, messages_tool_call, ollama_tool_call, chat_completions_overflow)

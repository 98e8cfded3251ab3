"""LlamaIndex: its agent, and embeddings."""

import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from task import EMBEDDING_MODEL, MODEL, STREAM, TEXTS, TOOL_QUESTION, URL, check_tool, check_vectors, double, run


def chat_completions_tool_call() -> None:
    model = OpenAILike(
        model=MODEL, api_base=f"{URL}/v1", api_key="any", is_chat_model=True, is_function_calling_model=True,
        context_window=65536, max_retries=0,
    )  # fmt: skip
    asyncio.run(_tool(model))


def ollama_tool_call() -> None:
    asyncio.run(_tool(Ollama(model=MODEL, base_url=URL, request_timeout=300, context_window=65536)))


def ollama_embeddings() -> None:
    check_vectors(OllamaEmbedding(model_name=EMBEDDING_MODEL, base_url=URL).get_text_embedding_batch(TEXTS))


async def _tool(model: FunctionCallingLLM) -> None:
    handler = FunctionAgent(tools=[double], llm=model, streaming=STREAM).run(TOOL_QUESTION)
    pieces = 0
    async for event in handler.stream_events():
        pieces += isinstance(event, AgentStream) and bool(event.delta)
    check_tool(str(await handler), pieces=pieces)


run(chat_completions_tool_call, ollama_tool_call, ollama_embeddings)

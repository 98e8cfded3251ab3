"""LangChain's agents and structured output with three dialects."""

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from task import (
    EMBEDDING_MODEL,
    MODEL,
    PERSON_TEXT,
    STREAM,
    TEXTS,
    TOOL_QUESTION,
    URL,
    check_person,
    check_tool,
    check_vectors,
    double,
    run,
)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def _openai(**more: bool) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="any", max_retries=0, **more)


def _anthropic() -> ChatAnthropic:
    return ChatAnthropic(model=MODEL, base_url=URL, api_key="any", max_retries=0)


def chat_completions_tool_call() -> None:
    _tool(_openai())


def responses_tool_call() -> None:
    _tool(_openai(use_responses_api=True))


def messages_tool_call() -> None:
    _tool(_anthropic())


def ollama_tool_call() -> None:
    _tool(ChatOllama(model=MODEL, base_url=URL))


def chat_completions_structured_output() -> None:
    _structured(_openai())


def messages_structured_output() -> None:
    _structured(_anthropic())


def ollama_structured_output() -> None:
    _structured(ChatOllama(model=MODEL, base_url=URL))


def ollama_embeddings() -> None:
    check_vectors(OllamaEmbeddings(model=EMBEDDING_MODEL, base_url=URL).embed_documents(TEXTS))


def _tool(model: BaseChatModel) -> None:
    agent = create_agent(model, tools=[double])
    question = {"messages": [{"role": "user", "content": TOOL_QUESTION}]}
    if STREAM:
        parts = [part for part, _ in agent.stream(question, stream_mode="messages") if part.type == "AIMessageChunk"]
        pieces = [part.text for part in parts if part.text]
        check_tool("".join(pieces), pieces=len(pieces))
    else:
        check_tool(agent.invoke(question)["messages"][-1].text)


def _structured(model: BaseChatModel) -> None:
    person = model.with_structured_output(Person, method="json_schema").invoke(
        f"Describe the person. ⟪say {PERSON_TEXT}⟫"
    )
    check_person(person.name, person.age)


run(
    chat_completions_tool_call,
    responses_tool_call,
    messages_tool_call,
    ollama_tool_call,
    chat_completions_structured_output,
    messages_structured_output,
    ollama_structured_output,
    ollama_embeddings,
)

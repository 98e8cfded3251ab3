"""Official clients get the runner's answer through the gateway."""

from tests.integration.gateway.conftest import Cluster
from tests.integration.gateway.scripted import ANSWER

TEXT = "".join(ANSWER)
QUESTION = [{"role": "user", "content": "What is Puna?"}]


async def test_ollama_chat_is_answered_whole(cluster: Cluster) -> None:
    answer = await cluster.ollama.chat(model="demo", messages=QUESTION)
    assert answer.message.content == TEXT
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", len(ANSWER) + 1)


async def test_ollama_chat_streams_one_chunk_per_token(cluster: Cluster) -> None:
    chunks = [chunk async for chunk in await cluster.ollama.chat(model="demo", messages=QUESTION, stream=True)]
    assert [chunk.message.content for chunk in chunks] == [*ANSWER, ""]
    assert [chunk.done for chunk in chunks] == [False] * len(ANSWER) + [True]


async def test_openai_chat_streams(cluster: Cluster) -> None:
    stream = await cluster.openai.chat.completions.create(
        model="demo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ANSWER) + 1

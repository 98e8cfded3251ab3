"""Model files whose header would confuse the engine: refused by name wherever a file comes from."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import BadModelFile, InvalidRequest
from protos import store_pb2
from tests.integration.host.store_node import Store, running_store, why_not
from tests.integration.host.test_pull_hostile import CONFIG, Answer, Asked, manifest_with, part_of, scripted


def with_number(name: bytes, value: int) -> Callable[[bytes], bytes]:
    """Return the change of a 32-bit value."""

    def change(content: bytes) -> bytes:
        at = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4
        return content[:at] + struct.pack("<I", value) + content[at + 4 :]

    return change


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one tensor twice": (
        lambda content: content.replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight", 1),
        "tensor 'blk.0.attn_q.weight' is there twice",
    ),
    "a key with NUL": (lambda content: content.replace(b"general.name", b"general.n\0me", 1), "general.n\\x00me"),
    "no heads": (with_number(b"llama.attention.head_count", 0), "llama.attention.head_count is 0"),
    "endless context": (
        with_number(b"llama.context_length", 2**32 - 1),
        "context_length' must be from 0 to 2147483647",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_header_is_refused_at_create_and_at_a_load_of_a_plain_file(
    store: Store, content: bytes, kind: str
) -> None:
    change, words = HOSTILE[kind]
    hostile = change(content)
    assert hostile != content
    with pytest.raises(InvalidRequest) as refused:
        await store.create("evil", files={"m.gguf": await store.put(hostile)})
    assert words in refused.value.message
    assert await store.names() == set()
    (store.node.models / "lying.gguf").write_bytes(hostile)
    model = await store.node.model("lying:latest")
    assert words in model.error
    assert not model.HasField("description")
    assert words in await why_not(store.node, await store.node.start_request("lying:latest"))


async def test_a_hostile_header_is_refused_at_a_pull(tmp_path: Path, content: bytes) -> None:
    change, words = HOSTILE["one tensor twice"]
    blobs = {hashlib.sha256(blob).hexdigest(): blob for blob in (CONFIG, change(content))}

    def respond(asked: Asked) -> Answer | None:
        found = next((blob for digest, blob in blobs.items() if digest in asked.path), None)
        return None if found is None else part_of(found, asked)

    with scripted(respond) as server:
        server.manifest = manifest_with(*blobs.items())
        async with running_store(tmp_path, PUNA_REGISTRIES=f"http://{server.host}") as store:
            request = store_pb2.PullRequest(name=f"{server.host}/team/evil:latest", insecure=True)
            with pytest.raises((InvalidRequest, BadModelFile)) as refused:
                _ = [line async for line in store.client.pull(store.node.address, request)]
            assert words in refused.value.message
            assert await store.names() == set()

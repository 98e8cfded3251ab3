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

_INT32, _FLOAT32 = 5, 6  # types of values


def with_number(name: bytes, value: float, *, kind: int | None = None) -> Callable[[bytes], bytes]:
    """Return the change of a 32-bit value, and of its type if that is given."""

    def change(content: bytes) -> bytes:
        at = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        typed = content[at : at + 4] if kind is None else struct.pack("<I", kind)
        number = struct.pack("<f" if kind == _FLOAT32 else "<i" if kind == _INT32 else "<I", value)
        return content[:at] + typed + number + content[at + 8 :]

    return change


def without_key_name(content: bytes) -> bytes:
    """Return the file with an empty key in the place of the model's name; the text takes its bytes."""
    name = b"general.name"
    at = content.index(struct.pack("<Q", len(name)) + name)
    text_at = at + 8 + len(name) + 4
    (length,) = struct.unpack_from("<Q", content, text_at)
    text_end = text_at + 8 + length
    value = struct.pack("<IQ", 8, length + len(name)) + content[text_at + 8 : text_end] + b" " * len(name)
    return content[:at] + struct.pack("<Q", 0) + value + content[text_end:]


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one tensor twice": (
        lambda content: content.replace(b"blk.0.attn_k.weight", b"blk.0.attn_q.weight", 1),
        "tensor 'blk.0.attn_q.weight' is there twice",
    ),
    "a key with NUL": (lambda content: content.replace(b"general.name", b"general.n\0me", 1), "general.n\\x00me"),
    "an empty key": (without_key_name, "key b'' is no name of printable ASCII characters"),
    "a tensor with NUL": (
        lambda content: content.replace(b"blk.0.attn_k.weight", b"blk.0.attn_k\0weight", 1),
        "has no name of printable ASCII characters",
    ),
    "no heads": (with_number(b"llama.attention.head_count", 0), "llama.attention.head_count is 0"),
    "less than no heads": (
        with_number(b"llama.attention.head_count", -1, kind=_INT32),
        "head_count' must be from 0 to 65536, not -1",
    ),
    "a float for a count": (
        with_number(b"llama.attention.head_count", 4.0, kind=_FLOAT32),
        "head_count' must be a whole number, not a float",
    ),
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

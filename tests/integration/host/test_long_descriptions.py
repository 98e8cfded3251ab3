"""Models that say too much: the messages of a node with all of its models stay short enough to be sent."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.host.store_layout import LaidOut
from tests.integration.host.store_node import running_store
from tests.unit.runner.core.model.test_gguf_check import STRING, UINT32, key, text

MIB = 1024 * 1024
LINE = b"x" * 250_000


def with_keys(content: bytes, *keys: bytes) -> bytes:
    """Put more keys at the beginning of a header."""
    count = int.from_bytes(content[16:24], "little") + len(keys)
    added = b"".join(keys)
    added += key(b"z", STRING, text(bytes(-(len(added) + 13) % 32)))  # the data stays aligned
    return content[:16] + (count + 1).to_bytes(8, "little") + added + content[24:]


def in_the_header(laid: LaidOut, content: bytes) -> None:
    keys = [key(b"text.%d" % number, STRING, text(LINE)) for number in range(40 * MIB // len(LINE))]
    (laid.directory / "evil.gguf").write_bytes(with_keys(content, *keys))


def in_licences(laid: LaidOut, content: bytes) -> None:
    laid.library("evil", laid.layer("model", content), *[laid.layer("license", b"x" * MIB)] * 40)


def in_the_system_text(laid: LaidOut, content: bytes) -> None:
    laid.library("evil", laid.layer("model", content), *[laid.layer("system", b"x" * MIB)] * 40)


@pytest.mark.parametrize("put", [in_the_header, in_licences, in_the_system_text])
async def test_a_model_that_says_too_much_is_refused_by_name_and_the_node_stays(
    put: Callable[[LaidOut, bytes], None], tmp_path: Path, laid: LaidOut, content: bytes
) -> None:
    (laid.directory / "good.gguf").write_bytes(content)
    put(laid, content)
    async with running_store(tmp_path) as store:
        evil = await store.node.model("evil:latest")
        assert evil.error
        assert "more than" in evil.error
        assert evil.ByteSize() < 10_000
        assert not (await store.node.model("good:latest")).error


async def test_the_newest_models_lose_their_descriptions_where_all_would_be_too_long(
    tmp_path: Path, laid: LaidOut, content: bytes
) -> None:
    """Each says as much as it may, so the first message of the node would be longer than messages may be."""
    keys = [key(b"text.%d" % number, STRING, text(LINE)) for number in range(7)]
    (laid.directory / "good.gguf").write_bytes(content)
    os.utime(laid.directory / "good.gguf", (1, 1))
    for number in range(20):
        name = key(b"general.number", UINT32, number.to_bytes(4, "little"))
        (laid.directory / f"long{number:02}.gguf").write_bytes(with_keys(content, name, *keys))
    async with running_store(tmp_path) as store:
        seen = await store.node.inventory(lambda found: sum(len(node.models) for node in found.nodes) == 21)
        models = {model.name: model for node in seen.nodes for model in node.models}
        assert not models["good:latest"].error
        refused = [model for model in models.values() if model.error]
        assert 0 < len(refused) < 20
        assert all("together" in model.error and model.digest for model in refused)

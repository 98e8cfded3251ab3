"""Names deleted or made anew in the store of a real node: what goes with them, and what stays."""

import hashlib
from pathlib import Path

import pytest

from common.errors import ModelNotFound
from tests.integration.host.store_layout import LaidOut
from tests.integration.host.store_node import Store, running_store


async def test_deleting_names_drops_only_what_no_other_name_needs(store: Store, laid: LaidOut, content: bytes) -> None:
    digest = await store.put(content)
    await store.create("one", files={"m.gguf": digest}, system="One.")
    await store.copy("one", "me/copy:v2")
    await store.create("two", from_model="one", system="Two.")
    before = laid.blob_names()
    assert await store.delete("ONE") == 0  # the copy needs all of it
    assert laid.blob_names() == before
    await store.without("one:latest")
    freed = await store.delete("me/copy:v2")
    assert 0 < freed < 1000  # a system text and its config
    assert await store.size(digest) == len(content)
    assert (await store.node.model("two:latest")).system == "Two."
    assert await store.delete("two") > len(content)
    assert laid.blob_names() == set()
    assert not list((laid.directory / "manifests").rglob("*"))
    for missing in (store.delete("two"), store.copy("two", "three")):
        with pytest.raises(ModelNotFound, match="not found"):
            await missing


async def test_making_a_name_anew_drops_what_its_former_content_needed(
    store: Store, laid: LaidOut, content: bytes
) -> None:
    digest = await store.put(content)
    await store.create("m", files={"m.gguf": digest}, system="Former text.")
    former = f"sha256-{hashlib.sha256(b'Former text.').hexdigest()}"
    assert former in laid.blob_names()
    await store.create("m", from_model="m", system="Newer text.")
    assert former not in laid.blob_names()
    assert (await store.node.model("m:latest")).digest == digest.removeprefix("sha256:")


async def test_nothing_is_dropped_while_a_manifest_cannot_be_read(store: Store, laid: LaidOut, content: bytes) -> None:
    digest = await store.put(content)
    library = laid.directory / "manifests" / "registry.ollama.ai" / "library"
    for name, spoil in (("bytes", "unreadable"), ("names", "strange")):
        await store.create(name, files={"m.gguf": digest})
        if spoil == "unreadable":
            other = library / "other" / "latest"
            other.parent.mkdir()
            other.write_bytes(b"{")
        else:
            other = library / name / "no tag"
            other.write_bytes(b"{}")
        assert await store.delete(name) == 0
        assert await store.size(digest) == len(content)
        other.unlink()
    await store.create("last", files={"m.gguf": digest})
    assert await store.delete("last") > len(content)


async def test_blobs_stay_where_the_operator_wants_them_kept(tmp_path: Path, laid: LaidOut, content: bytes) -> None:
    async with running_store(tmp_path, PUNA_NOPRUNE="1") as store:
        digest = await store.put(content)
        await store.create("m", files={"m.gguf": digest})
        before = laid.blob_names()
        assert await store.delete("m") == 0
        assert laid.blob_names() == before


async def test_a_plain_file_can_be_named_built_on_and_deleted(
    store: Store, laid: LaidOut, dense: Path, content: bytes
) -> None:
    plain = laid.directory / "dense.gguf"
    plain.write_bytes(content)
    model = await store.node.model("dense:latest")
    assert await store.read(model.digest, offset=100, max_bytes=50) == content[100:150]  # as other nodes fetch it
    await store.copy("dense", "copied")
    await store.create("built", from_model="dense", system="Built.")
    assert {(await store.node.model(f"{name}:latest")).digest for name in ("copied", "built")} == {model.digest}
    blob = laid.path(model.digest)
    assert blob.stat().st_ino == plain.stat().st_ino  # nothing was copied
    assert await store.delete("built") > 0
    assert plain.exists()
    assert await store.delete("dense") == len(content)
    assert not plain.exists()
    await store.without("dense:latest")
    assert (await store.node.model("copied:latest")).digest == model.digest
    assert blob.read_bytes() == content

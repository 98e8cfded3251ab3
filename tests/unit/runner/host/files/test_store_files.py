"""Blobs and manifests on disk, and what lies among them."""

import hashlib
from pathlib import Path

import pytest

from common.errors import DiskFull
from runner.core.model.file_names import model_name
from runner.core.store.names import StoreName
from runner.host.files.blobs import BlobStore
from runner.host.files.file_digests import FileDigests
from runner.host.files.manifests import ManifestStore
from runner.host.files.plain_files import FileStamp, find_files, plain_models

CONTENT = b"a blob"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture
def manifests(tmp_path: Path) -> ManifestStore:
    return ManifestStore(tmp_path / "manifests")


def test_a_committed_blob_is_read_only_and_announced(tmp_path: Path) -> None:
    heard: list[str] = []
    blobs = BlobStore(tmp_path / "blobs")
    blobs.on_commit = heard.append
    blobs.make_directory()
    partial = blobs.partial_path(DIGEST)
    partial.write_bytes(CONTENT)
    assert not blobs.has(DIGEST)
    blobs.commit(DIGEST, partial)
    assert (blobs.size(DIGEST), blobs.read(DIGEST), heard) == (len(CONTENT), CONTENT, [DIGEST])
    assert blobs.path(DIGEST).stat().st_mode & 0o777 == 0o444
    assert blobs.digests() == [DIGEST]
    assert blobs.delete(DIGEST) == len(CONTENT)
    assert (blobs.delete(DIGEST), blobs.digests()) == (0, [])


@pytest.mark.parametrize("digest", ["", "x", "../x", DIGEST[1:], DIGEST.upper(), DIGEST + "/../x"])
def test_what_is_no_digest_has_no_path(blobs: BlobStore, digest: str) -> None:
    with pytest.raises(ValueError, match="no sha256 digest"):
        blobs.path(digest)


def test_links_and_folders_are_no_blobs(blobs: BlobStore, tmp_path: Path) -> None:
    blobs.make_directory()
    outside = tmp_path / "outside"
    outside.write_bytes(CONTENT)
    blobs.path(DIGEST).symlink_to(outside)
    assert not blobs.has(DIGEST)
    with pytest.raises(OSError, match="symbolic"):
        blobs.read(DIGEST)
    assert blobs.delete(DIGEST) == 0
    assert outside.exists()


def test_more_than_the_disk_takes_is_refused_before_a_byte_is_written(blobs: BlobStore) -> None:
    free, total = blobs.room()
    blobs.check_room(1)
    with pytest.raises(DiskFull, match=f"no room for {total} bytes"):
        blobs.check_room(total)
    with pytest.raises(DiskFull):
        blobs.check_room(free)  # the headroom belongs to others
    assert not blobs.directory.exists()


def test_a_manifest_is_found_in_any_letters_and_kept_as_it_was_written(manifests: ManifestStore) -> None:
    name = StoreName.parse("hf.co/Me/Model-GGUF:Q4_K_M")
    manifests.write(name, b"1")
    other = StoreName.parse("HF.co/me/model-gguf:q4_k_m")
    assert manifests.read(other) == b"1"
    manifests.write(other, b"2")
    assert manifests.names() == [name]
    assert manifests.read(name) == b"2"
    assert manifests.delete(other)
    assert not manifests.delete(name)
    assert list(manifests.directory.iterdir()) == []


def test_a_folder_that_others_need_stays(manifests: ManifestStore) -> None:
    manifests.write(StoreName.parse("a:1"), b"1")
    manifests.write(StoreName.parse("a:2"), b"2")
    manifests.delete(StoreName.parse("a:1"))
    assert [name.short() for name in manifests.names()] == ["a:2"]


def test_links_in_the_store_are_not_followed(manifests: ManifestStore, tmp_path: Path) -> None:
    manifests.write(StoreName.parse("real"), b"1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "latest").write_bytes(b"theirs")
    folder = manifests.directory / "registry.ollama.ai" / "library"
    (folder / "linked").symlink_to(outside)
    assert [name.short() for name in manifests.names()] == ["real:latest"]
    for act in (
        lambda: manifests.read(StoreName.parse("linked")),
        lambda: manifests.delete(StoreName.parse("linked")),
        lambda: manifests.write(StoreName.parse("linked"), b"x"),
    ):
        with pytest.raises(OSError, match="not followed"):
            act()
    assert (outside / "latest").read_bytes() == b"theirs"


def test_a_link_in_the_place_of_a_half_written_manifest_is_not_written_through(
    manifests: ManifestStore, tmp_path: Path
) -> None:
    name = StoreName.parse("real")
    manifests.write(name, b"1")
    theirs = tmp_path / "theirs"
    theirs.write_bytes(b"theirs")
    manifests.path(name).with_name(".latest.new").symlink_to(theirs)
    with pytest.raises(OSError, match="symbolic links"):
        manifests.write(name, b"2")
    assert (theirs.read_bytes(), manifests.read(name)) == (b"theirs", b"1")
    manifests.write(name, b"2")
    assert (theirs.read_bytes(), manifests.read(name)) == (b"theirs", b"2")


def test_files_that_are_no_manifests_are_told_apart(manifests: ManifestStore) -> None:
    manifests.write(StoreName.parse("good"), b"1")
    folder = manifests.directory / "registry.ollama.ai" / "library"
    (folder / "good" / ".hidden").write_bytes(b"x")
    assert manifests.listing().strange == ()
    (folder / "good" / "bad tag").write_bytes(b"x")
    (folder / "file").write_bytes(b"x")
    listing = manifests.listing()
    assert [name.short() for name in listing.names] == ["good:latest"]
    assert [path.name for path in listing.strange] == ["file", "bad tag"]


def test_parts_of_one_model_are_taken_together(tmp_path: Path) -> None:
    for name in ("a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "b-00001-of-00003.gguf", "c.gguf", "d-1-of-2.gguf"):
        (tmp_path / name).write_bytes(b"x")
    found = {
        model_name(model.files[0].path): ([stamp.path.name for stamp in model.files], model.announced)
        for model in plain_models(find_files(tmp_path))
    }
    assert found == {
        "a:latest": (["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"], 2),
        "b:latest": (["b-00001-of-00003.gguf"], 3),
        "c:latest": (["c.gguf"], 1),
        "d-1-of-2:latest": (["d-1-of-2.gguf"], 1),
    }


async def test_digests_are_kept_by_content_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    digests = FileDigests(tmp_path / "digests.json")
    assert digests.known(FileStamp.of(path)) is None
    assert await digests.of(FileStamp.of(path)) == DIGEST
    assert FileDigests(tmp_path / "digests.json").known(FileStamp.of(path)) == DIGEST
    path.write_bytes(CONTENT + b"!")
    assert digests.known(FileStamp.of(path)) is None
    (tmp_path / "digests.json").write_bytes(b"{")
    assert FileDigests(tmp_path / "digests.json").known(FileStamp.of(path)) is None

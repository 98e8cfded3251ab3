"""Unfinished files at the start of a host: what a pull can resume stays, the rest goes, and all of it is named."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cli.doctor.machine import inspect_unfinished
from runner.core.registry.parts import Part, encode_state
from runner.host.files.blobs import BlobStore
from runner.host.registry.leftovers import tidy_up, unfinished
from runner.host.registry.partial_file import state_path

DIGEST, OTHER = "ab" * 32, "cd" * 32
SIZE = 1000


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    store = BlobStore(tmp_path / "blobs")
    store.make_directory()
    return store


def begin(blobs: BlobStore, digest: str, *, note: bytes | None = None) -> Path:
    """A download of which the first part is here."""
    path = blobs.partial_path(digest)
    path.write_bytes(bytes(SIZE))
    parts = (Part(start=0, stop=600, done=600), Part(start=600, stop=SIZE))
    state_path(path).write_bytes(note or encode_state(parts, digest=digest, size_bytes=SIZE))
    return path


def tidied(blobs: BlobStore) -> list[tuple[str, str]]:
    with capture_logs() as lines:
        tidy_up(blobs)
    return sorted((line["event"], Path(line["path"]).name) for line in lines)


def test_a_download_with_its_note_stays_and_is_named(blobs: BlobStore, tmp_path: Path) -> None:
    path = begin(blobs, DIGEST)
    assert tidied(blobs) == [("blob.unfinished", path.name)]
    assert path.exists()
    assert state_path(path).exists()
    (download,) = unfinished(blobs)
    assert (download.done_bytes, download.size_bytes) == (600, SIZE)
    (finding,) = inspect_unfinished(tmp_path)
    assert path.name in finding.text
    assert str(path) in finding.advice


@pytest.mark.parametrize("note", [b"{", b"[]", encode_state((Part(start=0, stop=9),), digest=DIGEST, size_bytes=9)])
def test_a_download_whose_note_does_not_fit_is_deleted(blobs: BlobStore, note: bytes) -> None:
    path = begin(blobs, DIGEST, note=note)
    assert tidied(blobs) == [("blob.leftover", path.name)]
    assert list(blobs.directory.iterdir()) == []


def test_uploads_copies_and_lone_notes_are_deleted(blobs: BlobStore) -> None:
    names = ["copy-1.puna-partial", f"sha256-{OTHER}.puna-partial.state", "upload-1.puna-partial"]
    for name in names:
        (blobs.directory / name).write_bytes(b"half")
    assert tidied(blobs) == [("blob.leftover", name) for name in names]
    assert list(blobs.directory.iterdir()) == []


def test_what_is_no_file_is_set_aside_so_that_the_blob_can_be_fetched(blobs: BlobStore) -> None:
    blobs.partial_path(DIGEST).mkdir()
    os.mkfifo(blobs.partial_path(OTHER))
    blobs.partial_path("ef" * 32).symlink_to("/nowhere")
    assert [event for event, _ in tidied(blobs)] == ["blob.leftover"] * 3
    assert not any(os.path.lexists(blobs.partial_path(digest)) for digest in (DIGEST, OTHER, "ef" * 32))
    assert len(list(blobs.directory.glob("*.corrupt-*"))) == 3
    assert tidied(blobs) == []


def test_files_of_others_stay(blobs: BlobStore) -> None:
    others = [blobs.directory / f"sha256-{DIGEST}", blobs.directory / f"sha256-{OTHER}-partial"]
    for path in others:
        path.write_bytes(b"theirs")
    assert tidied(blobs) == []
    assert all(path.exists() for path in others)


def test_a_store_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    assert tidied(BlobStore(tmp_path / "none")) == []

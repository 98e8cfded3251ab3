"""Model files of a directory."""

import os
import socket
from pathlib import Path

import pytest

from runner.host.files.blobs import BlobStore
from runner.host.files.manifests import ManifestStore
from runner.host.files.plain_files import FileStamp, Walk, find_files
from runner.host.models.sources import Finder


def test_only_visible_gguf_files_are_found_also_in_subdirectories(tmp_path: Path) -> None:
    for name in ("b.gguf", "sub/a.gguf", "folder.gguf/c.GGUF", ".hidden/c.gguf", ".part.gguf", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert [stamp.path.name for stamp in find_files(tmp_path)] == ["b.gguf", "c.GGUF", "a.gguf"]


def test_what_is_no_regular_file_is_found_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "null.gguf").symlink_to("/dev/null")
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.gguf")
        found = {stamp.path.name: stamp.trouble for stamp in find_files(tmp_path)}
    assert found == {
        "fifo.gguf": f"{tmp_path}/fifo.gguf: a FIFO, not a regular file",
        "folder.gguf": f"{tmp_path}/folder.gguf: a directory, not a regular file",
        "gone.gguf": f"{tmp_path}/gone.gguf: the link leads nowhere",
        "loop.gguf": f"{tmp_path}/loop.gguf: the link leads in a circle",
        "null.gguf": f"{tmp_path}/null.gguf: a device, not a regular file",
        "socket.gguf": f"{tmp_path}/socket.gguf: a socket, not a regular file",
    }


def test_a_path_that_does_not_answer_is_not_touched_and_is_what_it_was(tmp_path: Path) -> None:
    for name in ("new.gguf", "old.gguf", "mount/below.gguf", "silent/x.gguf", "good.gguf"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    known = {stamp.path: stamp for stamp in find_files(tmp_path) if stamp.path.name in ("old.gguf", "below.gguf")}
    stuck = frozenset(tmp_path / name for name in ("new.gguf", "old.gguf", "mount", "silent"))
    touched: list[Path] = []
    found = find_files(tmp_path, Walk(stuck=stuck, known=known, at=touched.append))
    assert touched == [tmp_path, tmp_path / "good.gguf"]
    assert {stamp.path.name: stamp.trouble for stamp in found} == {
        "below.gguf": "",
        "good.gguf": "",
        "new.gguf": f"{tmp_path}/new.gguf: it does not answer",
        "old.gguf": "",
        "silent": f"{tmp_path}/silent: it does not answer",
    }


def test_changed_content_changes_the_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    before = find_files(tmp_path)
    path.write_bytes(b"xy")
    assert find_files(tmp_path) != before


def test_a_missing_directory_has_no_files(tmp_path: Path) -> None:
    assert find_files(tmp_path / "nowhere") == []


def test_a_file_that_is_there_is_no_broken_link_while_it_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    assert find_files(tmp_path, Walk(at=lambda at: at.unlink() if at == path else None)) == []


def test_only_files_that_were_written_to_count_as_changed(tmp_path: Path) -> None:
    def found() -> list[str]:
        return [source.name for source in sources()]

    def sources() -> list:  # type: ignore[type-arg]
        return Finder(tmp_path, ManifestStore(tmp_path / "manifests"), BlobStore(tmp_path / "blobs")).look()

    first = tmp_path / "a b.gguf"
    first.write_bytes(b"x")
    (before,) = sources()
    assert found() == ["a-b:latest"]
    (tmp_path / "a-b.gguf").write_bytes(b"y")
    renamed = next(one for one in sources() if one.paths == (first,))
    assert renamed.name.startswith("a-b-")
    assert not renamed.is_changed(before), "its name is another one, its content is not"
    first.write_bytes(b"longer")
    grown = next(one for one in sources() if one.paths == (first,))
    assert grown.is_changed(renamed)


def test_stamps_name_content_and_not_paths(tmp_path: Path) -> None:
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    one.write_bytes(b"x")
    other.hardlink_to(one)
    assert FileStamp.of(one).cache_key() == FileStamp.of(other).cache_key()

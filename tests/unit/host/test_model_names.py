"""Model files of a directory."""

from pathlib import Path

import pytest

from runner.host.models.plain_files import find_files, model_name


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("demo.gguf", "demo:latest"),
        ("qwen3_8b.gguf", "qwen3_8b:latest"),
        ("qwen3:8b.gguf", "qwen3:8b"),
        ("a.b-Q4_K_M.gguf", "a.b-Q4_K_M:latest"),
    ],
)
def test_a_file_is_named_by_its_stem_with_a_tag(file_name: str, name: str) -> None:
    assert model_name(Path("/models") / file_name) == name


def test_only_visible_gguf_files_are_found_also_in_subdirectories(tmp_path: Path) -> None:
    for name in ("b.gguf", "sub/a.gguf", ".hidden/c.gguf", ".part.gguf", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    assert [stamp.path.name for stamp in find_files(tmp_path)] == ["b.gguf", "a.gguf"]


def test_changed_content_changes_the_stamp(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"x")
    before = find_files(tmp_path)
    path.write_bytes(b"xy")
    assert find_files(tmp_path) != before


def test_a_missing_directory_has_no_files(tmp_path: Path) -> None:
    assert find_files(tmp_path / "nowhere") == []

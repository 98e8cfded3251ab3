"""The files of other programs: where they are, and how they are replaced."""

import json
import os
import stat
from pathlib import Path

import pytest

from cli.client_files import file_path, planned_change, write_change
from cli.core.connect.client import Setting, Values, filled
from cli.core.connect.clients import CLIENTS
from cli.errors import CommandFailed, ExitCode

CLAUDE = CLIENTS["claude-code"].settings[0]
VALUES = Values(url="http://127.0.0.1:11434", model="demo", context=65536, output=8192)
TEXT = filled(CLAUDE.text, VALUES)


def write(path: Path, *, setting: Setting = CLAUDE, text: str = TEXT, secret: str = "") -> list[str]:
    change = planned_change(setting, text, path)
    if change.lines:
        write_change(change, secret=secret)
    return list(change.lines)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("key", "environment", "path"),
    [
        ("claude-code", {}, "/home/ada/.claude/settings.json"),
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/etc/claude"}, "/etc/claude/settings.json"),
        ("codex", {"CODEX_HOME": "~/codex"}, "/home/ada/codex/config.toml"),
        ("opencode", {"XDG_CONFIG_HOME": "/xdg"}, "/xdg/opencode/opencode.json"),
        ("opencode", {"XDG_CONFIG_HOME": "/xdg", "OPENCODE_CONFIG_DIR": "/oc"}, "/oc/opencode.json"),
        ("zed", {"XDG_CONFIG_HOME": ""}, "/home/ada/.config/zed/settings.json"),
        ("litellm", {}, "litellm_config.yaml"),
    ],
)
def test_a_file_is_where_its_client_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, key: str, environment: dict[str, str], path: str
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert file_path(CLIENTS[key].settings[0], {"HOME": "/home/ada", **environment}) == Path(path)


def test_without_a_home_no_file_is_guessed() -> None:
    with pytest.raises(CommandFailed, match="HOME is empty") as failed:
        file_path(CLAUDE, {"HOME": ""})
    assert failed.value.code is ExitCode.USAGE


def test_a_file_is_made_with_its_folder_and_the_second_time_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "settings.json"
    assert write(path)
    assert json.loads(path.read_text())["env"]["ANTHROPIC_MODEL"] == "demo"
    before = path.stat()
    assert write(path) == []
    assert path.stat().st_ino == before.st_ino
    assert list(path.parent.iterdir()) == [path]


def test_what_a_file_said_is_kept_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"theme": "dark"}')
    path.chmod(0o640)
    write(path)
    assert json.loads(path.read_text())["theme"] == "dark"
    assert mode_of(path) == 0o640
    assert (tmp_path / "settings.json.bak-puna").read_text() == '{"theme": "dark"}'
    assert mode_of(tmp_path / "settings.json.bak-puna") == 0o600


@pytest.mark.parametrize("existing", [None, '{"theme": "dark"}'])
def test_a_file_with_a_key_is_its_owner_s_alone(tmp_path: Path, existing: str | None) -> None:
    path = tmp_path / "settings.json"
    if existing is not None:
        path.write_text(existing)
        path.chmod(0o644)
    write(path, text=TEXT.replace("unused", "puna_k"), secret="puna_k")
    assert mode_of(path) == 0o600
    assert "puna_k" in path.read_text()


def test_a_new_file_without_a_key_follows_the_umask(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write(tmp_path / "settings.json")
    finally:
        os.umask(mask)
    assert mode_of(tmp_path / "settings.json") == 0o640


def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    target.write_text("{}")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert "env" in json.loads(target.read_text())


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{}")
    path.chmod(0o444)
    with pytest.raises(CommandFailed, match="is read-only; nothing is changed"):
        write(path)
    assert path.read_text() == "{}"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b'{"a": 1, // mine\n}', "has comments"), (b"\xff", "no text in UTF-8"), (b"[1]", "not a JSON object")],
)
def test_a_file_that_cannot_be_merged_is_named_and_stays(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(CommandFailed, match=why):
        write(path)
    assert path.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be read: Is a directory"):
        write(tmp_path)
    (tmp_path / "blocked").write_text("")
    with pytest.raises(CommandFailed, match=r"blocked/settings\.json cannot be"):
        write(tmp_path / "blocked" / "settings.json")


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    with path.open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(CommandFailed, match="more than 4194304 bytes"):
        write(path)

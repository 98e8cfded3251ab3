"""`puna keys`, and the file that it leaves."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from cli.commands.keys import create, revoke, show, show_all
from cli.errors import CommandFailed
from gateway.core.keys.keys import ALL_SCOPES
from gateway.keys.key_store import pepper_path, read_ring

Options = dict[str, Any]
OPTIONS: Options = {
    "owner": "ada",
    "tenant": "lab",
    "scopes": ["infer", "models:read"],
    "requests_per_minute": 60,
    "expires": "1h",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "keys.json"


def made(file: Path, capsys: pytest.CaptureFixture[str], options: Options = OPTIONS) -> str:
    create(options, file, as_json=True)
    key: str = json.loads(capsys.readouterr().out)["key"]
    return key


def test_a_made_key_opens_and_its_secret_is_kept_nowhere(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(file, capsys)
    kept = read_ring(file).find(key, now_unix_s=0)
    assert (kept.owner, kept.tenant, sorted(kept.scopes)) == ("ada", "lab", ["infer", "models:read"])
    assert kept.quota.requests_per_minute == 60
    assert kept.expires_unix_s == kept.created_unix_s + 3600
    secret = key.split("_")[2].encode()
    for path in file.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert secret not in path.read_bytes()
    show_all(file, as_json=False)
    show(kept.id, file, as_json=True)
    assert secret.decode() not in capsys.readouterr().out


def test_without_json_the_key_stands_alone_on_its_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(OPTIONS, file, as_json=False)
    key = capsys.readouterr().out.splitlines()[0]
    assert read_ring(file).find(key, now_unix_s=0).owner == "ada"


def test_an_owner_has_two_keys_at_most_and_a_third_after_one_is_revoked(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = made(file, capsys), made(file, capsys)
    with pytest.raises(CommandFailed, match="revoke one first"):
        made(file, capsys)
    key_id = first.split("_")[1]
    revoke(key_id, file, as_json=False)
    capsys.readouterr()
    made(file, capsys)
    ring = read_ring(file)
    assert len(ring.keys) == 3
    assert ring.keys[key_id].revoked_unix_s is not None
    assert not ring.keys[key_id].is_active(0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"owner": "ada", "tenant": "ada", "scopes": ["all"]}, "infer, embed"),
        ({"owner": "no name", "tenant": "ada", "scopes": ["infer"]}, "owner"),
        ({"owner": "ada", "tenant": "ada", "scopes": ["infer"], "networks": ["10.0.0"]}, "10.0.0"),
        ({"owner": "ada", "tenant": "ada", "scopes": ["infer"], "models": ["no name!"]}, "no name!"),
        ({"owner": "ada", "tenant": "ada", "scopes": ["infer"], "expires": "soon"}, "soon"),
        ({"owner": "ada", "tenant": "ada", "scopes": ["infer"], "band": "vip"}, "band"),
    ],
)
def test_bad_options_are_named_and_change_nothing(file: Path, options: Options, text: str) -> None:
    with pytest.raises(CommandFailed, match=text.replace(".", r"\.")):
        create(options, file, as_json=False)
    assert not file.exists()


def test_every_scope_can_be_given(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = made(file, capsys, {"owner": "root", "tenant": "root", "scopes": list(ALL_SCOPES)})
    assert read_ring(file).find(key, now_unix_s=0).scopes == ALL_SCOPES


def test_keys_without_their_pepper_are_not_overwritten(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(file, capsys)
    pepper_path(file).unlink()
    with pytest.raises(CommandFailed, match="pepper"):
        made(file, capsys)
    assert not pepper_path(file).exists()


def test_a_key_that_is_not_there_and_a_file_that_is_not_are_told(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailed, match=r"keys\.json"):
        show_all(file, as_json=False)
    made(file, capsys)
    with pytest.raises(CommandFailed, match="no key"):
        revoke("Nowhere1", file, as_json=False)

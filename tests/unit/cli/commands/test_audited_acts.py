"""Commands that change keys, tokens and certificates leave lines in the audit log, and do nothing without."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.audit.acts import ACT_FIELDS, Act
from common.audit.chain import check_chain
from common.trust.authority import Authority
from common.trust.roles import parse_role
from tests.integration.cli.place import call_puna
from tools.audit_table import OF_PROCESSES

DUE_S = 13 * 3600
Words = Callable[[Path], tuple[str, ...]]


def made(home: Path, *words: str) -> Any:
    done = call_puna(*words, "--json", PUNA_HOME=str(home))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def renewable(home: Path) -> tuple[str, ...]:
    Authority(home / "trust", wall_unix_s=lambda: time.time() - DUE_S).issue(parse_role("gateway"))
    return ("trust", "renew")


def exportable(home: Path) -> tuple[str, ...]:
    Authority(home / "trust").issue(parse_role("gateway"))
    return ("trust", "export", "gateway", "--output", str(home / "exported"))


# What each command needs before it is made in a home that has an authority.
COMMANDS: dict[Act, Words] = {
    Act.KEYS_CREATE: lambda _: ("keys", "create", "--owner", "ada"),
    Act.KEYS_REVOKE: lambda home: ("keys", "revoke", made(home, "keys", "create", "--owner", "ada")["id"]),
    Act.TOKENS_CREATE: lambda _: ("tokens", "create", "--node", "alpha"),
    Act.TOKENS_REVOKE: lambda home: ("tokens", "revoke", made(home, "tokens", "create")["id"]),
    Act.TRUST_INIT: lambda home: ("trust", "init", "--dir", str(home / "other")),
    Act.TRUST_ISSUE: lambda _: ("trust", "issue", "gateway"),
    Act.TRUST_RENEW: renewable,
    Act.TRUST_ROTATE: lambda _: ("trust", "rotate"),
    Act.TRUST_REDIS: lambda _: ("trust", "redis"),
    Act.TRUST_EXPORT: exportable,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Authority(tmp_path / "home" / "trust").create()
    return tmp_path / "home"


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_every_act_has_a_case_here_or_is_one_of_machines_that_join() -> None:
    assert COMMANDS.keys() | OF_PROCESSES == set(Act) == ACT_FIELDS.keys()


@pytest.mark.parametrize("act", COMMANDS, ids=str)
def test_a_command_leaves_a_line_before_and_after(act: Act, home: Path, tmp_path: Path) -> None:
    words, log = COMMANDS[act](home), tmp_path / "audit"
    done = call_puna(*words, PUNA_HOME=str(home), PUNA_AUDIT_LOG=str(log))
    assert done.returncode == 0, done.stderr
    lines = log.read_bytes().splitlines()
    assert check_chain(lines) == 2
    before, after = map(json.loads, lines)
    assert (before["act"], before["decision"], before["user"]) == (act, "allowed", after["user"])
    assert (after["act"], after["status"]) == (act, "done")
    assert before["object"] == after["object"]
    assert before["request_id"] == after["request_id"]
    shown = [word for word in done.stdout.split() if word.startswith(("puna_", "puna1."))]
    assert not [secret for secret in shown if secret in log.read_text()]


@pytest.mark.parametrize("act", COMMANDS, ids=str)
def test_without_its_line_a_command_does_nothing(act: Act, home: Path, tmp_path: Path) -> None:
    words = COMMANDS[act](home)
    before = files_in(home)
    done = call_puna(*words, PUNA_HOME=str(home), PUNA_AUDIT_LOG=str(tmp_path))  # a directory
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"puna: {tmp_path}: the audit log cannot be written")
    assert done.stderr.count("\n") == 1
    left = {path: content for path, content in files_in(home).items() if not path.endswith((".lock", ".pepper"))}
    assert left == {path: content for path, content in before.items() if not path.endswith((".lock", ".pepper"))}


def test_lines_are_in_the_home_or_in_the_directory_that_a_command_is_given(home: Path, tmp_path: Path) -> None:
    assert call_puna("keys", "create", "--owner", "ada", PUNA_HOME=str(home)).returncode == 0
    assert call_puna("tokens", "create", PUNA_HOME=str(home)).returncode == 0
    assert len((home / "audit.jsonl").read_bytes().splitlines()) == 4
    elsewhere = tmp_path / "elsewhere"
    assert call_puna("trust", "init", "--dir", str(elsewhere), PUNA_HOME=str(home)).returncode == 0
    assert len((elsewhere / "audit.jsonl").read_bytes().splitlines()) == 2
    assert call_puna("audit", str(home / "audit.jsonl")).stdout.startswith("4 lines, none changed")
    quiet = call_puna("tokens", "create", PUNA_HOME=str(home), PUNA_AUDIT_LOG="")
    assert quiet.returncode == 0
    assert len((home / "audit.jsonl").read_bytes().splitlines()) == 4


def test_an_act_that_fails_says_so(home: Path) -> None:
    (home / "trust" / "redis").write_text("no directory")
    assert call_puna("trust", "redis", PUNA_HOME=str(home)).returncode == 1
    *_, last = map(json.loads, (home / "audit.jsonl").read_text().splitlines())
    assert (last["act"], last["status"]) == ("trust.redis", "failed")
    assert "File exists" in last["error"]

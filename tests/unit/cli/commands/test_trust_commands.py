"""`puna trust`, as it is typed."""

import json
import time
from pathlib import Path

import pytest

from common.trust.authority import Authority
from common.trust.identity import Identity
from common.trust.roles import parse_role
from tests.integration.cli.place import call_puna


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    assert call_puna("trust", "init", PUNA_HOME=str(tmp_path)).returncode == 0
    return tmp_path / "trust"


def test_an_issued_certificate_is_listed_and_learns_of_a_rotation(directory: Path) -> None:
    place = ("--dir", str(directory))
    issued = call_puna("trust", "issue", "node/a", "gateway", *place)
    assert issued.stdout.splitlines() == [f"{directory}/node/a", f"{directory}/gateway"]
    assert call_puna("trust", "rotate", *place).returncode == 0

    identity = Identity(directory / "gateway")
    assert identity.material().authorities.count(b"BEGIN") == 2
    listed = json.loads(call_puna("trust", "list", "--json", *place).stdout)["certificates"]
    assert [one["role"] for one in listed] == ["gateway", "node/a"]
    assert listed[1]["directory"] == f"{directory}/node/a"


def test_users_of_redis_have_passwords_beside_their_certificates(directory: Path) -> None:
    written = call_puna("trust", "redis", "--dir", str(directory))
    assert written.stdout.splitlines() == [f"{directory}/redis/users.acl"]
    users = [line.split()[1] for line in (directory / "redis" / "users.acl").read_text().splitlines()]
    assert users == ["default", "gateway", "scheduler"]
    assert {path.parent.name for path in directory.glob("*/redis-password")} == {"gateway", "scheduler"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("issue", "root"), "no role 'root'; roles are gateway, scheduler"),
        (("issue", "node"), "node needs an id"),
        (("issue", "node/../../ca"), "node needs an id"),
        (("issue", "gateway", "--life", "soon"), "soon"),
        (("issue", "gateway", "--life", "1ms"), "a second at least"),
        (("init",), "`puna trust rotate` replaces it"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], text: str, directory: Path) -> None:
    done = call_puna("trust", *words, "--dir", str(directory))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("puna: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_past_half_of_its_life_is_renewed(directory: Path) -> None:
    place = ("--dir", str(directory))
    call_puna("trust", "issue", "scheduler", *place)
    Authority(directory, wall_unix_s=lambda: time.time() - 13 * 3600).issue(parse_role("gateway"))
    assert call_puna("trust", "renew", *place).stdout == "renewed gateway\n"
    assert call_puna("trust", "renew", *place).stdout == ""

"""`puna trust`, as it is typed."""

import base64
import json
import time
from pathlib import Path

import pytest
import yaml

from common.trust.authority import Authority
from common.trust.certificates import by_fingerprint
from common.trust.identity import Identity
from common.trust.roles import parse_role
from common.trust.tokens import parse_token
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
    assert users == ["default", "gateway", "scheduler", "redis"]
    assert {path.parent.name for path in directory.glob("*/redis-password")} == {"gateway", "scheduler", "redis"}


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


def test_show_names_each_identity_its_authority_and_its_end(directory: Path) -> None:
    call_puna("trust", "issue", "node/a", "--dir", str(directory))
    (authority,) = by_fingerprint((directory / "ca" / "ca.crt").read_bytes())
    for place in (directory, directory / "node" / "a"):
        (shown,) = json.loads(call_puna("trust", "show", "--dir", str(place), "--json").stdout)["certificates"]
        assert (shown["role"], shown["authority"]) == ("node/a", authority)
        assert shown["renewed"] < shown["expires"]


def test_exported_secrets_have_the_files_of_their_roles(directory: Path, tmp_path: Path) -> None:
    place = ("--dir", str(directory))
    call_puna("trust", "issue", "node/Alpha_1.x", "gateway", *place)
    printed = list(yaml.safe_load_all(call_puna("trust", "export", *place).stdout))
    assert [one["metadata"]["name"] for one in printed] == ["puna-trust-gateway", "puna-trust-node-alpha-1.x"]
    for secret, role in zip(printed, ("gateway", "node/Alpha_1.x"), strict=True):
        assert (secret["kind"], secret["type"]) == ("Secret", "kubernetes.io/tls")
        files = {name: base64.b64decode(text) for name, text in secret["data"].items()}
        assert files == {path.name: path.read_bytes() for path in (directory / role).iterdir()}
    assert call_puna("trust", "export", "gateway", "--output", str(tmp_path / "out"), *place).stdout == ""
    (written,) = (tmp_path / "out").iterdir()
    assert written.stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(written.read_text()) == printed[0]


def test_a_token_is_shown_once_and_can_be_revoked(directory: Path) -> None:
    place = ("--dir", str(directory))
    token = parse_token(call_puna("tokens", "create", "--node", "a", "--life", "10m", *place).stdout)
    listed = call_puna("tokens", "list", *place).stdout
    assert token.id in listed
    assert token.secret not in listed
    assert call_puna("tokens", "revoke", token.id, *place).stdout == f"revoked token {token.id}\n"
    assert json.loads(call_puna("tokens", "list", "--json", *place).stdout) == {"tokens": []}


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("tokens", "create", "--life", "soon"), 2, "soon"),
        (("tokens", "create", "--life", "169h"), 2, "--life must be from 1s to 168h"),
        (("tokens", "create", "--node", "../a"), 2, "node needs an id"),
        (("tokens", "revoke", "0123456789"), 3, "`puna tokens list` shows them"),
        (("tokens", "create", "--dir", "/nonexistent"), 1, "there is no authority in /nonexistent; `puna trust init`"),
        (("trust", "show", "--dir", "/nonexistent"), 3, "/nonexistent has no certificate"),
        (("trust", "export", "gateway"), 3, "`puna trust issue gateway` makes it"),
        (("up", "--token", "x"), 2, "--token goes with --join ADDRESS"),
    ],
)
def test_what_tokens_and_secrets_cannot_do_is_one_line(
    words: tuple[str, ...], status: int, text: str, directory: Path
) -> None:
    place = () if "--dir" in words or words[0] == "up" else ("--dir", str(directory))
    done = call_puna(*words, *place)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert text in done.stderr


def test_a_damaged_authority_is_one_line_that_names_it(directory: Path) -> None:
    place = ("--dir", str(directory))
    Authority(directory, wall_unix_s=lambda: time.time() - 13 * 3600).issue(parse_role("gateway"))
    (directory / "ca" / "ca.key").write_bytes(b"garbage")
    for command in (("issue", "scheduler"), ("rotate",), ("renew",)):
        refused = call_puna("trust", *command, *place)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
        assert f"{directory / 'ca'}: no private key in PEM" in refused.stderr

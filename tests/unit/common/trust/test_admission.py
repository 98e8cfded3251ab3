"""Machines that join with a token: who is let in, and what that leaves in the authority's directory."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from common.errors import InvalidRequest, PermissionDenied, Unauthenticated
from common.startup_error import StartupError
from common.trust.admission import Admission, Application
from common.trust.authority import Authority
from common.trust.certificates import LIFE_S, KeyPair, by_fingerprint, check_pair, issue, make_authority
from common.trust.requests import make_request
from common.trust.roles import Role, RoleName, parse_role
from common.trust.tokens import Token, parse_token

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0


class Place:
    """An authority with a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now_s = NOW_S
        self.authority = Authority(directory, wall_unix_s=lambda: self.now_s)
        self.authority.create()
        self.admission = Admission(self.authority, wall_unix_s=lambda: self.now_s)
        self.tokens = self.admission.tokens

    def admit(
        self, token: Token, node_id: str = "", *, request: bytes = b"", registered: tuple[str, ...] = ()
    ) -> tuple[RoleName, bytes]:
        pem = request or make_request().certificate
        application = Application(token_id=token.id, secret=token.secret, request=pem, node_id=node_id)
        return self.admission.admit(application, registered=registered)

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.authority.directory.glob("**/*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "trust")


def test_a_machine_gets_the_certificate_of_its_node_for_its_own_key(place: Place) -> None:
    request = make_request()
    name, certificate = place.admit(place.tokens.create(), "alpha", request=request.certificate)
    facts = check_pair(KeyPair(certificate, request.key), place.authority.authorities(), now_unix_s=NOW_S)
    assert facts.name == name == RoleName(Role.NODE, "alpha")
    assert facts.valid_to_unix_s == NOW_S + LIFE_S
    assert [one.name for one in place.admission.joined()] == [name]
    assert all(request.key not in content for content in place.files().values())


def test_the_file_of_tokens_is_private_and_has_no_secret(place: Place) -> None:
    token = place.tokens.create()
    path = place.authority.directory / "tokens.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert token.secret not in path.read_text()
    assert token.fingerprint in by_fingerprint(place.authority.authorities())
    assert parse_token(f" {token}\n") == token


def _use(place: Place, token: Token) -> Token:
    place.admit(token, "first")
    return token


def _expire(place: Place, token: Token) -> Token:
    place.now_s += HOUR_S
    return token


def _revoke(place: Place, token: Token) -> Token:
    assert place.tokens.revoke(token.id)
    assert not place.tokens.revoke(token.id)
    return token


def _guess(_place: Place, token: Token) -> Token:
    return Token(token.fingerprint, token.id, "a" * 32)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_use, "was used, by node first"),
        (_expire, "has expired"),
        (_revoke, "unknown or was revoked"),
        (_guess, "unknown or was revoked"),
    ],
)
def test_a_token_that_is_not_good_changes_nothing(
    place: Place, spoil: Callable[[Place, Token], Token], text: str
) -> None:
    token = spoil(place, place.tokens.create())
    before = place.files()
    with pytest.raises(Unauthenticated, match=f"{text}.*; `puna tokens create`"):
        place.admit(token, "alpha")
    assert place.files() == before


def test_only_tokens_that_can_still_be_used_are_listed(place: Place) -> None:
    used, expired, good = place.tokens.create(), place.tokens.create(life_s=1.0), place.tokens.create(node="x")
    place.admit(used)
    place.now_s += 2.0
    assert [(one.id, one.node) for one in place.tokens.usable()] == [(good.id, "x")]
    assert expired.id not in {one.id for one in place.tokens.usable()}


def test_the_same_machine_may_repeat_its_request_while_the_token_is_good(place: Place) -> None:
    token, request = place.tokens.create(), make_request().certificate
    first, _ = place.admit(token, request=request)
    assert place.admit(token, request=request)[0] == first
    place.now_s += HOUR_S
    with pytest.raises(Unauthenticated, match="has expired"):
        place.admit(token, request=request)


def test_of_machines_that_use_one_token_at_once_one_is_let_in(place: Place) -> None:
    token = place.tokens.create()

    def try_it(number: int) -> bool:
        try:
            place.admit(token, f"n{number}")
        except Unauthenticated:
            return False
        return True

    with ThreadPoolExecutor(8) as machines:
        assert sum(machines.map(try_it, range(8))) == 1


def _joined(place: Place) -> None:
    place.admit(place.tokens.create(), "alpha")


def _issued(place: Place) -> None:
    place.authority.issue(parse_role("node/alpha"))


@pytest.mark.parametrize("settle", [_joined, _issued])
def test_the_id_of_a_node_is_free_again_when_its_certificate_has_expired(
    place: Place, settle: Callable[[Place], None]
) -> None:
    settle(place)
    token = place.tokens.create(life_s=2 * LIFE_S)
    before = place.files()
    with pytest.raises(PermissionDenied, match="there is a node alpha already; set another PUNA_NODE_ID"):
        place.admit(token, "alpha")
    assert place.files() == before
    place.now_s += LIFE_S + 1
    assert place.admit(token, "alpha")[0].id == "alpha"


def test_the_id_of_a_node_that_was_removed_is_free(place: Place) -> None:
    place.admit(place.tokens.create(), "alpha")
    place.admission = Admission(place.authority, refuses=lambda _: True, wall_unix_s=lambda: place.now_s)
    assert place.admit(place.tokens.create(), "alpha")[0].id == "alpha"


def test_a_node_that_runs_without_a_certificate_of_this_authority_keeps_its_id(place: Place) -> None:
    with pytest.raises(PermissionDenied, match="there is a node alpha already"):
        place.admit(place.tokens.create(), "alpha", registered=("alpha",))


def test_a_token_for_a_node_is_good_for_no_other(place: Place) -> None:
    token = place.tokens.create(node="alpha")
    with pytest.raises(PermissionDenied, match="the token is for node alpha; set PUNA_NODE_ID=alpha"):
        place.admit(token, "beta")
    assert place.admit(token)[0].id == "alpha"


@pytest.mark.parametrize("node_id", ["../ca", "a/b", "-a", "a" * 64])
def test_an_id_that_cannot_be_one_is_refused(place: Place, node_id: str) -> None:
    with pytest.raises(InvalidRequest, match="PUNA_NODE_ID may have letters"):
        place.admit(place.tokens.create(), node_id)


@pytest.mark.parametrize("spoil", [lambda _pem: b"no request", lambda pem: pem[:200], lambda pem: b" " * 20000 + pem])
def test_what_is_no_request_uses_no_token_up(place: Place, spoil: Callable[[bytes], bytes]) -> None:
    token = place.tokens.create()
    with pytest.raises(InvalidRequest, match="no certificate signing request"):
        place.admit(token, request=spoil(make_request().certificate))
    place.admit(token)


def test_a_certificate_is_renewed_for_as_long_as_it_was_good(place: Place) -> None:
    place.admit(place.tokens.create(), "alpha")
    (before,) = place.admission.joined()
    place.now_s += LIFE_S / 2
    request = make_request()
    certificate = place.admission.renew(before, request.certificate)
    after = check_pair(KeyPair(certificate, request.key), place.authority.authorities(), now_unix_s=place.now_s)
    assert (after.name, after.valid_to_unix_s) == (before.name, place.now_s + LIFE_S)
    assert place.admission.joined() == [after]


def test_after_a_rotation_a_token_names_the_authority_that_discovery_still_shows(place: Place) -> None:
    place.authority.issue(RoleName(Role.DISCOVERY))
    before = place.tokens.create().fingerprint
    place.authority.rotate()
    assert place.tokens.create().fingerprint == before
    place.authority.issue(RoleName(Role.DISCOVERY))
    assert place.tokens.create().fingerprint == next(iter(by_fingerprint(place.authority.authorities()))) != before


def _remove_key(directory: Path) -> None:
    (directory / "ca" / "ca.key").unlink()


def _open_key(directory: Path) -> None:
    (directory / "ca" / "ca.key").chmod(0o644)


def _damage_tokens(directory: Path) -> None:
    (directory / "tokens.json").write_text('[{"id": 1}]')


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (_remove_key, r"ca\.key is gone; bring it back, or remove"),
        (_open_key, r"ca\.key can be read by other users; set mode 0600"),
        (_damage_tokens, r"tokens\.json cannot be used .*; remove it"),
    ],
)
def test_files_of_the_authority_that_cannot_be_used_are_one_line(
    place: Place, damage: Callable[[Path], None], text: str
) -> None:
    token = place.tokens.create()
    damage(place.authority.directory)
    before = place.files()
    with pytest.raises(StartupError, match=text) as caught:
        place.admit(token, "alpha")
    assert "\n" not in str(caught.value)
    assert place.files() == before


def test_a_certificate_for_another_authority_is_none_of_these(place: Place) -> None:
    other = make_authority(NOW_S)
    stranger = issue(other, RoleName(Role.DISCOVERY), now_unix_s=NOW_S)
    (place.authority.directory / "discovery").mkdir()
    (place.authority.directory / "discovery" / "tls.crt").write_bytes(stranger.certificate)
    assert place.tokens.create().fingerprint in by_fingerprint(place.authority.authorities())


@pytest.mark.parametrize("text", ["", "puna1.x.y.z", "K10abc::server:xyz", "puna1." + "a" * 64])
def test_what_is_no_token_says_where_there_are_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="`puna tokens create` print one"):
        parse_token(text)

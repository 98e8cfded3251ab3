"""The list of removed nodes: its rules, and its file."""

from pathlib import Path

import pytest

from common.errors import Unauthenticated
from common.startup_error import StartupError
from common.trust.certificates import Facts, issue, make_authority, read_facts
from common.trust.revocations import KEPT_S, Revocations
from common.trust.roles import parse_role
from protos import discovery_pb2
from tests.unit.common.trust.test_certificates import NOW_S


def row(node_id: str = "b", at_s: float = NOW_S) -> discovery_pb2.Revocation:
    return discovery_pb2.Revocation(node_id=node_id, issued_before_unix_ms=round(at_s * 1000))


def facts(role: str = "node/b", issued_s: float = NOW_S - 1) -> Facts:
    return read_facts(issue(make_authority(NOW_S), parse_role(role), now_unix_s=issued_s).certificate)


@pytest.mark.parametrize(
    ("role", "issued_s", "is_refused"),
    [
        ("node/b", NOW_S - 0.01, True),
        ("node/b", NOW_S + 0.01, False),
        ("node/a", NOW_S - 1, False),
        ("gateway", NOW_S - 1, False),
    ],
)
def test_certificates_of_the_node_that_were_issued_before_are_refused(
    role: str, issued_s: float, is_refused: bool
) -> None:
    revocations = Revocations(wall_unix_s=lambda: NOW_S)
    revocations.merge([row()])
    assert revocations.refuses(facts(role, issued_s)) is is_refused


def test_a_refusal_says_when_and_what_to_do() -> None:
    revocations = Revocations(wall_unix_s=lambda: NOW_S)
    revocations.merge([row()])
    with pytest.raises(Unauthenticated, match="at 2027-01-15 08:00:00Z; issue a new certificate"):
        revocations.check(facts())


def test_the_later_moment_counts_and_an_equal_list_is_no_change() -> None:
    revocations = Revocations(wall_unix_s=lambda: NOW_S)
    revocations.merge([row(at_s=NOW_S)])
    revocations.merge([row(at_s=NOW_S - 60)])
    assert (dict(revocations.entries), revocations.changes.version) == ({"b": NOW_S * 1000}, 1)


def test_a_moment_far_ahead_locks_no_node_out() -> None:
    revocations = Revocations(wall_unix_s=lambda: NOW_S)
    revocations.merge([row(at_s=NOW_S + 1e9)])
    assert not revocations.refuses(facts(issued_s=NOW_S + 600))


def test_a_list_survives_its_process_and_rows_end_by_themselves(tmp_path: Path) -> None:
    now_s, path = NOW_S, tmp_path / "home" / "removed.json"
    Revocations(path, wall_unix_s=lambda: now_s).merge([row()])
    again = Revocations(path, wall_unix_s=lambda: now_s)
    assert again.refuses(facts())
    now_s += KEPT_S + 1
    again.merge([row("c", now_s)])
    assert set(again.entries) == {"c"}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"b": "x"}'])
def test_a_damaged_list_stops_the_start(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "removed.json"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=f"cannot read the list of removed nodes in {path}"):
        Revocations(path)

"""Expiry in /api/ps: known, not begun, or never."""

import pytest

from gateway.core.models.routes import ReplicaInfo, ReplicaState
from gateway.http.ollama.models import NEVER, _expiry

NOW_MS = 1_800_000_000_000


def replica(**fields: object) -> ReplicaInfo:
    known: dict[str, object] = {
        "placement_id": "p1",
        "generation": 1,
        "incarnation": "i",
        "node_id": "n",
        "address": "127.0.0.1:1",
        "state": ReplicaState.READY,
        "context_tokens": 256,
        "slots_total": 1,
    }
    return ReplicaInfo(**(known | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "expiry"),
    [
        ({"expires_at_unix_ms": NOW_MS + 7_000}, "2027-01-15T08:00:07"),
        # The route was told while it was busy. That it is idle meanwhile changes nothing: its time has not begun there.
        ({"slots_busy": 1}, "2027-01-15T08:05:00"),
        ({}, "2027-01-15T08:05:00"),
        ({"keep_alive_ms": 60_000}, "2027-01-15T08:01:00"),
        ({"stays": True, "slots_busy": 1}, NEVER),
        ({"state": ReplicaState.LOADING}, NEVER),
    ],
)
def test_when_a_replica_goes(fields: dict[str, object], expiry: str) -> None:
    assert _expiry(replica(**fields), NOW_MS).startswith(expiry)

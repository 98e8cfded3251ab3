"""Rows of /puna/v1/placements: each replica once, however many names its file has."""

from dataclasses import replace

from gateway.core.models.routes import ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.http.puna.bodies import PlacementAnswer
from gateway.http.puna.placements import placements_of
from gateway.replicas.replicas import ReplicaPool

REPLICA = ReplicaInfo(
    placement_id="p1", generation=1, incarnation="i", node_id="n", address="127.0.0.1:1", state=ReplicaState.READY,
    context_tokens=256, slots_total=1,
)  # fmt: skip
COPY = RouteInfo(model=ModelInfo(name="copy:latest", digest="d"), replicas=(REPLICA,))
DEMO = RouteInfo(model=ModelInfo(name="demo:latest", digest="d"), replicas=(REPLICA,))
OTHER = RouteInfo(
    model=ModelInfo(name="other:latest", digest="e"), replicas=(replace(REPLICA, placement_id="p2", node_id="m"),)
)


def listed(asked: RouteInfo | None = None) -> list[tuple[object, object, object]]:
    pool = ReplicaPool(on_change=lambda: None)
    rows = placements_of(pool, [DEMO, OTHER, COPY], requested=asked)
    for row in rows:
        PlacementAnswer.model_validate(row)
    return [(row["id"], row["model"], row["names"]) for row in rows]


def test_a_replica_is_listed_once_with_all_names_of_its_file() -> None:
    assert listed() == [
        ("p1", "copy:latest", ["copy:latest", "demo:latest"]),
        ("p2", "other:latest", ["other:latest"]),
    ]


def test_who_asks_for_one_name_is_answered_by_that_name() -> None:
    assert listed(DEMO) == [("p1", "demo:latest", ["copy:latest", "demo:latest"])]
    assert listed(OTHER) == [("p2", "other:latest", ["other:latest"])]

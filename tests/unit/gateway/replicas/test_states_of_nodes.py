"""The gateway's memory of the nodes that keep a conversation, also after their replicas have ended."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from gateway.core.dispatch.prompt_prefixes import PromptPrefixes, name_prefixes
from gateway.core.models.routes import ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.replicas.replicas import LEFT_MAX, Connection, ReplicaPool
from protos import cluster_pb2
from runner.client import RunnerClient


class SilentRunner:
    """Reports nothing by itself."""

    multiplexes = False

    async def watch_load(self, **_: Any) -> AsyncIterator[cluster_pb2.RunnerStatus]:
        await asyncio.Event().wait()
        yield cluster_pb2.RunnerStatus()

    async def close(self) -> None:
        """Nothing is open."""


def named(text: bytes) -> PromptPrefixes:
    return name_prefixes([text], salt="t")


PROMPT = named(b"a long system prompt " * 100)
HALF = named(b"a long system prompt " * 50)


def replica(node_id: str) -> ReplicaInfo:
    return ReplicaInfo(
        placement_id=f"on-{node_id}",
        generation=1,
        incarnation="1",
        node_id=node_id,
        address=f"{node_id}:1",
        state=ReplicaState.READY,
        context_tokens=4096,
        slots_total=2,
    )


class Pool:
    """A pool whose runners say what a test lets them say."""

    def __init__(self) -> None:
        self.pool = ReplicaPool(on_change=lambda: None, connect=lambda *_: cast("RunnerClient", SilentRunner()))

    def serve(self, *node_ids: str) -> None:
        self.pool.sync([RouteInfo(model=ModelInfo(name="m", digest="d"), replicas=tuple(map(replica, node_ids)))])

    def connection(self, node_id: str) -> Connection:
        return next(one for one in self.pool._connections.values() if one.info.node_id == node_id)

    def hear(self, node_id: str, *, slots: PromptPrefixes | None = None, tier: PromptPrefixes | None = None) -> None:
        status = cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_READY, slots_total=2)
        status.held_prefixes.names.extend(slots.names if slots else ())
        if tier:
            status.held_prefixes.saved.add(names=tier.names, restore_ms=5, tier="ram")
        self.pool._hear(self.connection(node_id), status)

    def hint(self, node_id: str) -> str:
        return self.pool.node_with_state(self.connection(node_id), PROMPT)


async def test_the_node_that_keeps_more_of_a_prompt_than_the_chosen_one_is_named() -> None:
    one = Pool()
    one.serve("a", "b")
    assert one.hint("a") == ""
    one.hear("b", tier=HALF)
    assert (one.hint("a"), one.hint("b")) == ("b", "")
    one.hear("a", slots=PROMPT)
    assert (one.hint("a"), one.hint("b")) == ("", "a")
    await one.pool.close()


async def test_what_slots_held_is_known_of_a_node_after_its_replica_has_ended() -> None:
    one = Pool()
    one.serve("a")
    one.hear("a", slots=PROMPT)
    one.serve("b")
    assert one.hint("b") == "a"
    await one.pool.close()


@pytest.mark.parametrize(
    "figures",
    [
        {"slots_total": 2**32 - 1},
        {"load_fraction": math.nan},
        {"pace": cluster_pb2.RunnerPace(token_s=math.nan)},
        {"pace": cluster_pb2.RunnerPace(bytes_per_token=-math.inf)},
    ],
    ids=str,
)
async def test_a_report_with_a_figure_that_is_none_is_not_believed(figures: dict[str, Any]) -> None:
    """A runner that a model file took over would draw every request of the model, or spoil the choice among others."""
    pool = Pool()
    pool.serve("a")
    pool.hear("a", slots=PROMPT)
    connection = pool.connection("a")
    before = connection.load, connection.pace, connection.holdings
    evil = cluster_pb2.RunnerStatus(
        state=cluster_pb2.RUNNER_STATE_READY, held_prefixes=cluster_pb2.HeldPrefixes(), **figures
    )
    pool.pool._hear(connection, evil)
    assert (connection.load, connection.pace, connection.holdings) == before
    await pool.pool.close()


async def test_only_so_many_nodes_are_remembered() -> None:
    one = Pool()
    for number in range(LEFT_MAX + 2):
        one.serve(f"n{number}")
        one.hear(f"n{number}", slots=PROMPT)
    one.serve("last")
    assert len(one.pool._left) == LEFT_MAX
    await one.pool.close()

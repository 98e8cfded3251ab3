"""Constraints are compiled in workers before they get a slot: what a hostile one costs, and whom."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from common.errors import InvalidRequest
from gateway.constraint_checks import REFUSAL_KEPT_S, ConstraintChecks
from gateway.core.dispatch.fairness import NO_TENANT
from gateway.core.request.constraint import Constraint
from tests.integration.gateway.conftest import Cluster, eventually
from tests.set_clock import SetClock

WIDE = json.dumps({"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}})
# Each of its schemas compiles in half a second.
SLOW = Constraint(
    grammar="root ::= " + " | ".join(f"s{number}" for number in range(16)),
    schemas={f"s{number}": WIDE.replace("p1", f"q{number}") for number in range(16)},
)
_tenant = ContextVar("tenant", default=NO_TENANT)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def checks(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConstraintChecks]:
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)  # the kernel's limit on CPU time alone
    monkeypatch.setattr("common.sandbox.worker_pool.WAIT_S_MAX", 100.0)
    one = ConstraintChecks(clock, tenant=_tenant.get)
    yield one
    await one.stop()


def schema(number: int) -> Constraint:
    return Constraint(json_schema=json.dumps({"type": "object", "properties": {f"p{number}": {"type": "string"}}}))


def workers() -> list[int]:
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"check_constraints" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def killed() -> float:
    return REGISTRY.get_sample_value("puna_gateway_killed_constraints_total") or 0.0


async def check_for(tenant: str, checks: ConstraintChecks, constraint: Constraint) -> None:
    """Check in a task of this tenant."""
    _tenant.set(tenant)
    await checks.check(constraint)


async def test_a_constraint_that_takes_too_long_is_ended_and_refused_to_its_tenant_for_a_minute(
    checks: ConstraintChecks, clock: SetClock
) -> None:
    before = killed()
    for tenant, moved_s, ended in (("a", 0.0, 1), ("a", REFUSAL_KEPT_S - 0.01, 1), ("b", 0.0, 2), ("a", 61.0, 3)):
        clock.moved_s = moved_s
        with pytest.raises(InvalidRequest, match="grammar takes too long") as caught:
            await asyncio.create_task(check_for(tenant, checks, SLOW))
        assert caught.value.param == "grammar"
        assert killed() == before + ended


async def test_a_refused_constraint_and_one_that_passed_cost_no_worker_again(checks: ConstraintChecks) -> None:
    refused = Constraint(json_schema='{"multipleOf": 3}')
    await checks.check(schema(1))
    with pytest.raises(InvalidRequest, match="'multipleOf' is not supported"):
        await checks.check(refused)
    await checks.stop()  # from here on a check would wait for ever
    async with asyncio.timeout(5):
        await checks.check(schema(1))
        with pytest.raises(InvalidRequest, match="'multipleOf' is not supported") as caught:
            await checks.check(refused)
    assert caught.value.param == "json_schema"


async def test_a_client_that_leaves_ends_the_compilation(checks: ConstraintChecks) -> None:
    checking = asyncio.create_task(check_for("a", checks, SLOW))
    await eventually(lambda: bool(workers()) and cpu_s(workers()[0]) > 0.6)  # more than its start takes
    (compiling,) = workers()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert compiling not in workers()
    await checks.check(schema(2))


async def test_a_flood_of_one_tenant_delays_no_other(checks: ConstraintChecks) -> None:
    flood = [
        asyncio.create_task(check_for("loud", checks, Constraint(json_schema=WIDE.replace("p1", f"q{number}"))))
        for number in range(30)
    ]
    await eventually(lambda: len(workers()) == 1)
    for number in range(30):
        await asyncio.create_task(check_for("quiet", checks, schema(number)))
    ended = sum(one.done() for one in flood)
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    assert ended < len(flood) / 2, "the quiet tenant waited for the loud one"


async def test_a_constraint_that_cannot_be_used_reaches_no_replica(cluster: Cluster) -> None:
    answer = await cluster.http.post(
        "/v1/chat/completions",
        json={
            "model": "demo",
            "messages": [{"role": "user", "content": "x"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "integer", "minimum": 5, "maximum": 4}},
            },
        },
    )
    assert answer.status_code == 400
    assert "greater than maximum" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "response_format"
    assert cluster.runner.requests == []

"""Constraints are compiled in workers before they get a slot: what a hostile one costs, and whom."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from common.errors import InvalidRequest, QueueFull
from gateway.constraint_checks import CORE_SHARE, QUICK_BYTES_MAX, QUICK_CPU_S_MAX, REFUSAL_KEPT_S, ConstraintChecks
from gateway.core.request.constraint import Constraint
from tests.integration.gateway.conftest import Cluster, eventually
from tests.set_clock import SetClock

WIDE = json.dumps({"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}})
# Each of its schemas compiles in half a second.
SLOW = Constraint(
    grammar="root ::= " + " | ".join(f"s{number}" for number in range(16)),
    schemas={f"s{number}": WIDE.replace("p1", f"q{number}") for number in range(16)},
)
SLOW_S = 0.5
_sender = ContextVar("sender", default="ada")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def checks(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ConstraintChecks]:
    monkeypatch.setattr("common.sandbox.worker_pool.WALL_S_MAX", 100.0)  # the kernel's limit on CPU time alone
    monkeypatch.setattr("common.sandbox.worker_pool.WAIT_S_MAX", 100.0)
    monkeypatch.setattr("gateway.constraint_checks.SLOW_CPU_S_MAX", SLOW_S)
    one = ConstraintChecks(clock, sender=_sender.get)
    yield one
    await one.stop()


def schema(number: int) -> Constraint:
    return Constraint(json_schema=json.dumps({"type": "object", "properties": {f"p{number}": {"type": "string"}}}))


def workers() -> list[int]:
    own = os.getpid()
    children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
    return [int(pid) for pid in children if b"check_constraints" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_slow(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2] == str(SLOW_S)


def killed() -> float:
    return REGISTRY.get_sample_value("puna_gateway_killed_constraints_total") or 0.0


async def check_for(sender: str, checks: ConstraintChecks, constraint: Constraint) -> Constraint:
    """Check in a task of this sender."""
    _sender.set(sender)
    return await checks.check(constraint)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [('{"type": ', "is not JSON"), ("[" * 50 + "]" * 50, "nested deeper than 32"), ("3", "is not an object")],
)
async def test_a_schema_that_is_none_is_refused_with_its_reason(
    checks: ConstraintChecks, text: str, refusal: str
) -> None:
    """A gRPC client sends a text, which no gateway has parsed."""
    before = killed()
    with pytest.raises(InvalidRequest, match=refusal):
        await checks.check(Constraint(json_schema=text))
    assert killed() == before


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


@pytest.mark.parametrize(
    ("schema_text", "text"),
    [
        ('{"multipleOf": 3}', "'multipleOf' is not supported"),
        ('{"type": 5}', "the schema in json_schema has a type that is none of JSON's"),
    ],
)
async def test_a_refused_constraint_and_one_that_passed_cost_no_worker_again(
    checks: ConstraintChecks, schema_text: str, text: str
) -> None:
    refused = Constraint(json_schema=schema_text)
    await checks.check(schema(1))
    with pytest.raises(InvalidRequest, match=text):
        await checks.check(refused)
    await checks.stop()  # from here on a check would wait for ever
    async with asyncio.timeout(5):
        await checks.check(schema(1))
        with pytest.raises(InvalidRequest, match=text) as caught:
            await checks.check(refused)
    assert caught.value.param == "json_schema"


async def test_a_client_that_leaves_ends_the_compilation_and_is_charged_for_it(
    checks: ConstraintChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.constraint_checks.DEBT_S_MAX", QUICK_CPU_S_MAX + SLOW_S / 2)
    checking = asyncio.create_task(check_for("a", checks, SLOW))
    await eventually(lambda: any(map(is_slow, workers())))
    (compiling,) = filter(is_slow, workers())
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert compiling not in workers()
    await checks.check(schema(2))
    with pytest.raises(QueueFull):
        await asyncio.create_task(check_for("a", checks, schema(2)))


async def test_a_flood_of_one_sender_delays_no_other_and_its_processor_time_is_bounded(
    checks: ConstraintChecks, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.constraint_checks.DEBT_S_MAX", 1.0)
    await check_for("quiet", checks, schema(0))
    flood = [
        asyncio.create_task(check_for("loud", checks, Constraint(json_schema=WIDE.replace("p1", f"q{number}"))))
        for number in range(12)
    ]
    # It has left the worker that it began with, for one that gives way.
    await eventually(lambda: any(map(is_slow, workers())))
    for number in range(1, 11):
        await asyncio.create_task(check_for("quiet", checks, schema(number)))
    assert not all(one.done() for one in flood), "the quiet sender waited for the loud one"
    outcomes = await asyncio.gather(*flood, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, QueueFull)]
    assert len(refused) > len(flood) / 2
    assert all(isinstance(one, QueueFull | InvalidRequest) for one in outcomes)
    with pytest.raises(QueueFull) as caught:
        await asyncio.create_task(check_for("loud", checks, schema(99)))
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s < 1 + 2 * SLOW_S / CORE_SHARE
    clock.moved_s = 1 / CORE_SHARE
    await asyncio.create_task(check_for("loud", checks, schema(99)))


async def test_what_has_passed_goes_to_runners_converted(checks: ConstraintChecks) -> None:
    usual = await checks.check(schema(1))
    assert (usual.json_schema, usual.is_slow) == (schema(1).json_schema, False)
    assert usual.lark.startswith("%llguidance")
    assert await checks.check(schema(1)) == usual
    inner = {f"q{number}": {"type": "string", "pattern": f"^[a-z]{{1,40}}{number}$"} for number in range(3)}
    many = {f"p{number}": {"properties": inner} for number in range(480)}
    assert (await checks.check(Constraint(json_schema=json.dumps({"properties": many})))).is_slow


async def test_a_large_constraint_is_compiled_where_it_takes_no_time_from_others(checks: ConstraintChecks) -> None:
    text = {"p": {"enum": ["x" * QUICK_BYTES_MAX]}}
    await checks.check(Constraint(json_schema=json.dumps({"properties": text})))
    (worker,) = workers()
    assert is_slow(worker)


async def test_a_sender_has_one_turn_at_a_time_for_slow_constraints(checks: ConstraintChecks) -> None:
    slow = Constraint(json_schema="{}", is_slow=True)
    first = await checks.turn(slow)
    (await checks.turn(Constraint(json_schema="{}"))).end()
    second = asyncio.create_task(checks.turn(slow))
    _sender.set("another")
    (await checks.turn(slow)).end()
    assert not second.done()
    first.end()
    first.end()
    (await second).end()


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

"""The bookkeeping of embedding requests, with an engine that answers when it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from common.errors import InternalError, QueueFull, RequestCanceled
from runner.engine.contract.pooling import PooledEnd, PooledReport, PooledTimes, PooledVector
from runner.serve.embedding_table import Computed, EmbeddingTable
from runner.serve.streams import WAITING_MAX

TIMES = PooledTimes(queue_ns=1, compute_ns=2)


class QuietEngine:
    """Takes requests and waits."""

    def __init__(self) -> None:
        self.submitted: dict[int, Sequence[Sequence[int]]] = {}
        self.cancelled: list[int] = []

    def submit_inputs(self, request_id: int, inputs: Sequence[Sequence[int]]) -> None:
        self.submitted[request_id] = inputs

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)


def make_table(*, slots: int = 2) -> tuple[EmbeddingTable, QuietEngine]:
    engine: Any = QuietEngine()
    table = EmbeddingTable(engine)
    table.slots = slots
    return table, engine


async def begin(table: EmbeddingTable, engine: QuietEngine, inputs: Sequence[Sequence[int]]) -> asyncio.Task[Computed]:
    """A request that the engine has."""
    known = len(engine.submitted)
    task = asyncio.create_task(table.compute(inputs))
    for _ in range(5):
        turned = asyncio.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        await turned.wait()
    assert len(engine.submitted) == known + 1
    return task


def vector(request_id: int, index: int, value: float) -> PooledVector:
    return PooledVector(request_id, index, np.array([value], np.float32))


async def test_vectors_come_back_in_the_order_of_the_inputs_however_they_were_computed() -> None:
    table, engine = make_table()
    task = await begin(table, engine, [[1], [2], [3]])
    assert (table.inside, table.accepted, table.idle.is_set()) == (1, 1, False)
    table.apply(PooledReport(vectors=[vector(1, 2, 30.0), vector(1, 0, 10.0)], slots_busy=2, waiting=1))
    assert (table.slots_busy, table.waiting) == (2, 1)
    assert not task.done()
    table.apply(PooledReport(vectors=[vector(1, 1, 20.0)], ends=[PooledEnd(1, None, TIMES)]))
    computed = await task
    assert [float(values[0]) for values in computed.vectors] == [10.0, 20.0, 30.0]
    assert computed.times == TIMES
    assert (table.inside, table.slots_busy, table.idle.is_set()) == (0, 0, True)


async def test_an_input_that_fails_fails_its_request_alone() -> None:
    table, engine = make_table()
    bad, good = await begin(table, engine, [[1], [2]]), await begin(table, engine, [[3]])
    ends = [PooledEnd(1, InternalError("x"), TIMES), PooledEnd(2, None, TIMES)]
    table.apply(PooledReport(vectors=[vector(1, 0, 1.0), vector(2, 0, 2.0)], ends=ends))
    with pytest.raises(InternalError):
        await bad
    assert len((await good).vectors) == 1


async def test_a_cancelled_request_keeps_its_place_until_the_engine_let_go_of_it() -> None:
    table, engine = make_table()
    task = await begin(table, engine, [[1]])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.cancelled == [1]
    assert (table.inside, table.idle.is_set()) == (1, False)
    table.apply(PooledReport(ends=[PooledEnd(1, None, None)]))
    assert (table.inside, table.idle.is_set()) == (0, True)


async def test_a_stopped_engine_is_no_answer() -> None:
    table, engine = make_table()
    task = await begin(table, engine, [[1], [2]])
    table.apply(PooledReport(vectors=[vector(1, 0, 1.0)], ends=[PooledEnd(1, None, TIMES)]))
    with pytest.raises(RequestCanceled):
        await task


async def test_requests_beyond_the_waiting_places_are_refused_until_one_ends() -> None:
    table, engine = make_table(slots=2)
    tasks = [await begin(table, engine, [[1]]) for _ in range(2 + WAITING_MAX)]
    with pytest.raises(QueueFull) as refused:
        await table.compute([[1]])
    assert refused.value.retry_after_s
    assert len(engine.submitted) == len(tasks)
    table.apply(PooledReport(vectors=[vector(1, 0, 1.0)], ends=[PooledEnd(1, None, TIMES)]))
    tasks.append(await begin(table, engine, [[1]]))
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.cancelled == list(range(2, len(tasks) + 1))

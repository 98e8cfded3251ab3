"""A host that may open few files more: a start is refused with a reason, nothing is left behind, and it heals."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.errors import InternalError, PunaError
from protos import cluster_pb2, host_pb2
from runner.host.processes.children import run_child
from tests.integration.host.node import Node, pids_below
from tests.waiting import until

READY = cluster_pb2.RUNNER_STATE_READY
SPARE_MAX = 9  # more than a start needs at once
OF_PIPES = 4  # of a child whose output is read


def open_files(pid: int) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}


@contextmanager
def few_files(pid: int, spare: int) -> Iterator[None]:
    """Let a process open so many files more."""
    limits, taken = resource.prlimit(pid, resource.RLIMIT_NOFILE), open_files(pid)
    free = [number for number in range(max(taken) + spare + 2) if number not in taken]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[spare], limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


async def test_a_host_without_descriptors_refuses_a_start_and_leaves_nothing_behind(node: Node) -> None:
    pid = node.host.process.pid
    first = await node.start_request()
    assert (await node.run(first)).status.state == READY
    await node.stop(first)
    before, outcomes = len(open_files(pid)), list[str]()
    for spare in range(SPARE_MAX):
        request = await node.start_request()
        with few_files(pid, spare):
            try:
                record = await node.run(request)
                outcomes.append(record.status.error.message)
            except PunaError as error:
                outcomes.append(error.message)
        if outcomes[-1]:  # the placement is no more than it was before
            again = host_pb2.StartRequest()
            again.CopyFrom(request)
            again.placement.generation += 1
            assert (await node.run(again)).status.state == READY, outcomes
            await node.stop(again)
        else:
            await node.stop(request)
        await until(lambda: pids_below(node.home) == [], what=f"nothing is left of a start with {spare} files")
    await until(lambda: len(open_files(pid)) <= before, what="no descriptor was lost")
    assert outcomes[0] != "", "it needs no descriptor"
    assert all("too many open files" in text.lower() for text in outcomes if text), outcomes
    assert [event for event in node.host.events if event["event"].endswith(".bug")] == []


async def test_a_child_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = len(open_files(os.getpid()))
    for spare in range(OF_PIPES + 1):
        with few_files(os.getpid(), spare), pytest.raises(InternalError, match="Too many open files"):
            await run_child("probe", [], timeout_s=60)
    assert len(open_files(os.getpid())) == before

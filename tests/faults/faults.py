"""Faults with three methods: make it happen, prove that it happened, end it. An unproven fault counts for nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from common.process_faults import Killed, ProcessFault, Stopped, ThreadBlocked, process_state
from runner.engine.threads.engine_thread import ENGINE_THREAD
from tests.waiting import wait_until

__all__ = ["FaultDidNotHappen", "Killed", "Stopped", "broken", "engine_blocked", "process_state", "verify"]

HAPPENS_WITHIN_S = 5.0


class FaultDidNotHappen(AssertionError):
    """The target is as healthy as before."""


def engine_blocked(pid: int) -> ThreadBlocked:
    """The engine thread of a runner stands still; its event loop answers."""
    return ThreadBlocked(pid, ENGINE_THREAD)


def verify(fault: ProcessFault) -> None:
    """Prove it by the kernel's own word.

    Raises:
        FaultDidNotHappen: a test that goes on would show nothing.
    """
    try:
        wait_until(fault.has_happened, deadline_s=HAPPENS_WITHIN_S, what="the fault happens")
    except AssertionError as error:
        state = process_state(fault.pid)
        raise FaultDidNotHappen(f"{type(fault).__name__}: process {fault.pid} is in state {state!r}") from error


@contextmanager
def broken(fault: ProcessFault) -> Iterator[None]:
    """The fault lasts as long as the context."""
    fault.inject()
    try:
        verify(fault)
        yield
    finally:
        fault.heal()

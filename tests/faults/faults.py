"""Faults with three methods: make it happen, prove that it happened, end it. An unproven fault counts for nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.waiting import wait_until

HAPPENS_WITHIN_S = 5.0


class FaultDidNotHappen(AssertionError):
    """The target is as healthy as before."""


class Fault(Protocol):
    """Something that breaks."""

    def inject(self) -> None:
        """Make it happen."""

    def verify(self) -> None:
        """Prove it by the kernel's own word.

        Raises:
            FaultDidNotHappen: a test that goes on would show nothing.
        """

    def heal(self) -> None:
        """End it."""


def process_state(pid: int) -> str:
    """One letter as in ps; empty: there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[0]


@dataclass(slots=True)
class Killed:
    """`kill -9`. It heals by whoever watches the process."""

    pid: int

    def inject(self) -> None:
        """See Fault."""
        os.kill(self.pid, signal.SIGKILL)

    def verify(self) -> None:
        """See Fault."""
        _expect(self.pid, ("", "Z", "X"))

    def heal(self) -> None:
        """See Fault."""


@dataclass(slots=True)
class Stopped:
    """SIGSTOP: the process is there, holds its memory and its connections, and does nothing."""

    pid: int

    def inject(self) -> None:
        """See Fault."""
        os.kill(self.pid, signal.SIGSTOP)

    def verify(self) -> None:
        """See Fault."""
        _expect(self.pid, ("T",))

    def heal(self) -> None:
        """See Fault."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


def _expect(pid: int, states: tuple[str, ...]) -> None:
    try:
        wait_until(lambda: process_state(pid) in states, deadline_s=HAPPENS_WITHIN_S, what="the fault happens")
    except AssertionError as error:
        raise FaultDidNotHappen(f"process {pid} is in state {process_state(pid)!r}, not in {states}") from error


@contextmanager
def broken(fault: Fault) -> Iterator[None]:
    """The fault lasts as long as the context."""
    fault.inject()
    try:
        fault.verify()
        yield
    finally:
        fault.heal()

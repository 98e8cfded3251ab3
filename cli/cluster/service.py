"""The services of one cluster: each is started, watched, started again and stopped; all of them in order.

They start in the order of their needs, and stop in reverse.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO

from cli.cluster.log_files import last_line
from cli.cluster.process_table import ProcessEntry, read_process
from cli.cluster.zygote import PACKAGES, ServiceZygote
from cli.core.restart import RestartState, after_death
from runner.host.processes.process import ProcessHandle

# After SIGKILL only a process that hangs in the kernel is still there.
_KILLED_WITHIN_S = 5.0


class ServiceState(StrEnum):
    """Life of a service as the state file shows it."""

    WAITING = "waiting"  # for what it needs, before its first start
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"  # died, and waits for its next start
    STOPPED = "stopped"


class ServiceDied(Exception):
    """The process ended before it was ready for the first time. The text says why, as far as its log does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A service: its command, its readiness check, and its dependencies. `environment` is called at each start."""

    name: str
    command: tuple[str, ...]
    environment: Callable[[], Mapping[str, str]]
    log: Path
    ready: Callable[[], Awaitable[None]]
    ready_within_s: float
    stop_within_s: float
    needs: frozenset[str] = field(default_factory=frozenset)


class ServiceProcess:
    """Owns the process. `say` gets one line for people, `changed` is called after each change of state."""

    def __init__(
        self,
        spec: ServiceSpec,
        *,
        say: Callable[[str], None],
        changed: Callable[[], None],
        zygote: ServiceZygote | None = None,
    ) -> None:
        """Nothing is started yet."""
        self.spec = spec
        self._zygote = zygote
        self.state = ServiceState.WAITING
        self.restarts = RestartState()
        self.environment: Mapping[str, str] = {}
        self.child: ProcessHandle | None = None
        self.entry: ProcessEntry | None = None  # of the last child
        self._say = say
        self._changed = changed
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until it is ready; from then on it is kept running.

        Raises:
            ServiceDied: it ended, or was not ready in time; nothing is tried again.
        """
        await self._launch()
        self._task = asyncio.create_task(self._keep_running(), name=f"keep {self.spec.name}")
        ready = asyncio.ensure_future(self.spec.ready())
        try:
            await asyncio.wait(
                {ready, self._task}, timeout=self.spec.ready_within_s, return_when=asyncio.FIRST_COMPLETED
            )
            if self._task.done():
                why = (last_line(self.spec.log) or "it said nothing").removeprefix(f"puna {self.spec.name}: ")
                raise ServiceDied(f"{self.spec.name} could not start: {why} (log: {self.spec.log}); see `puna doctor`")
            if not ready.done():
                raise ServiceDied(
                    f"{self.spec.name} was not ready within {self.spec.ready_within_s:.0f} s (log: {self.spec.log})"
                )
            ready.result()
            # No await since the look at the task: a death from here on finds RUNNING and leads to a restart.
            self._enter(ServiceState.RUNNING)
        finally:
            ready.cancel()
            await asyncio.wait({ready})

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop the process: SIGTERM, and SIGKILL to its group when its time is up or `hurry` is set."""
        self._stopping.set()
        if self._task is None:
            return
        if self.child is not None:
            self.child.signal(signal.SIGTERM)  # to it alone: it knows how to stop what it started
            await first_of(self._task, hurry, timeout_s=self.spec.stop_within_s)
            if self.child is not None:
                if not hurry.is_set():
                    self._say(f"{self.spec.name} did not stop within {self.spec.stop_within_s:.0f} s and is killed")
                self.child.kill_group()
        _, pending = await asyncio.wait({self._task}, timeout=_KILLED_WITHIN_S)
        if pending:
            self._say(f"{self.spec.name} (pid {self.child.pid if self.child else '?'}) cannot be killed")
            self._task.cancel()
        self._enter(ServiceState.STOPPED)

    async def _keep_running(self) -> None:
        """Return once the process ended before it was ready, or a stop was requested."""
        while True:
            assert self.child is not None
            started_s = time.monotonic()
            await self.child.exited.wait()
            status, self.child = self.child.exit_code, None
            assert status is not None, "it was a child"
            if self._stopping.is_set() or self.state is ServiceState.STARTING:
                return
            self.restarts = after_death(self.restarts, uptime_s=time.monotonic() - started_s)
            # A process that refuses to start says why in its last line.
            why = f" ({last_line(self.spec.log) or 'it said nothing'})" if status > 0 else ""
            self._say(
                f"{self.spec.name} {describe_exit(status)}{why}; starting it again in {self.restarts.delay_s:g} s"
                f" (log: {self.spec.log})"
            )
            self._enter(ServiceState.RESTARTING)
            if not await self._start_again():
                return
            self._enter(ServiceState.RUNNING)

    async def _start_again(self) -> bool:
        """Wait, and launch the process; where the system refuses that, wait longer. False: a stop was requested."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.restarts.delay_s)
                return False
            try:
                await self._launch()
                return True
            except OSError as error:
                self.restarts = after_death(self.restarts, uptime_s=0.0)
                self._say(f"{self.spec.name} cannot be started: {error}; next try in {self.restarts.delay_s:g} s")

    async def _launch(self) -> None:
        self.environment = environment = self.spec.environment()
        with self.spec.log.open("ab") as output, open(os.devnull, "rb") as nothing:  # noqa: ASYNC230, PTH123
            if self._zygote is not None:
                streams = (nothing.fileno(), output.fileno(), output.fileno())
                self.child = await self._zygote.start(self.spec.command, environment=environment, streams=streams)
            if self.child is None:
                self.child = start_child(self.spec.command, environment=environment, output=output)
        self.entry = read_process(self.child.pid)
        if self._stopping.is_set():
            self.child.signal(signal.SIGTERM)  # the stop did not see it
        if self.state is ServiceState.WAITING:
            self._enter(ServiceState.STARTING)

    def _enter(self, state: ServiceState) -> None:
        self.state = state
        self._changed()


def start_child(command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]) -> ProcessHandle:
    """Start a command in a session of its own; it reads nothing, and what it writes is appended to `output`.

    It is started through `cli.child`, so that it gets SIGTERM when this process dies.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "cli.child", str(os.getpid()), "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        cwd=PACKAGES,
        # A Ctrl-C of the terminal goes to the foreground group; the supervisor alone shall get it.
        start_new_session=True,
    )
    process = ProcessHandle(child.pid, os.pidfd_open(child.pid), is_child=True)
    child.returncode = 0  # the handle reaps; without this Popen would try, too, when it is collected
    return process


def describe_exit(status: int) -> str:
    """Return a readable text for a process's exit status."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


async def first_of(task: asyncio.Task[None], event: asyncio.Event, *, timeout_s: float | None = None) -> None:
    """Wait for the task, the event or the time, whichever comes first."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class Supervisor:
    """Sole owner of the services. `say` gets lines for people, `changed` is called after each change of a service."""

    def __init__(
        self,
        specs: Iterable[ServiceSpec],
        *,
        say: Callable[[str], None],
        changed: Callable[[], None],
        zygote: ServiceZygote | None = None,
    ) -> None:
        """Nothing is started yet. `zygote`: services are forked from it; None: each is started by its command."""
        self.services = {spec.name: ServiceProcess(spec, say=say, changed=changed, zygote=zygote) for spec in specs}
        self._waves = plan_start_waves({name: service.spec.needs for name, service in self.services.items()})

    async def start(self) -> None:
        """Start everything; returns when the last service is ready.

        Raises:
            ServiceDied: a service cannot start; call `stop`, the others still run.
        """
        for wave in self._waves:
            starts = [asyncio.create_task(self.services[name].start()) for name in wave]
            try:
                await asyncio.gather(*starts)
            finally:
                for task in starts:
                    task.cancel()
                await asyncio.wait(starts)

    async def stop(self, hurry: asyncio.Event) -> None:
        """Stop everything in reverse order; once `hurry` is set, what still runs is killed."""
        for wave in reversed(self._waves):
            await asyncio.gather(*(self.services[name].stop(hurry) for name in wave))

    def pids(self) -> frozenset[int]:
        """Return the pids of the children that run."""
        return frozenset(service.child.pid for service in self.services.values() if service.child is not None)


def plan_start_waves(needs: Mapping[str, frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Group services so that everything a service needs is in an earlier wave; a wave may start at once.

    Stopping takes the waves backwards: a service goes before what it needs. Within a wave the order of `needs` is kept.
    """
    unknown = frozenset().union(*needs.values()) - needs.keys()
    assert not unknown, f"needed but not planned: {sorted(unknown)}"
    waves: list[tuple[str, ...]] = []
    started: set[str] = set()
    while len(started) < len(needs):
        wave = tuple(name for name, needed in needs.items() if name not in started and needed <= started)
        assert wave, f"services need each other: {sorted(needs.keys() - started)}"
        waves.append(wave)
        started.update(wave)
    return tuple(waves)

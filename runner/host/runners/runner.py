"""One runner from its start to its end, as the host sees it.

One task owns each runner: it spawns (or adopts) the process, follows the reports of the runner, and notices the end.
All others read `record()` and wait on `changes`.
"""

import asyncio
import errno
import os
import shutil
from functools import partial
from pathlib import Path

import orjson

from common.changes import Changes
from common.clock import MS_PER_S, Clock
from common.errors import DeviceMemoryExhausted, DiskFull, InternalError, PunaError, RunnerLost, ShuttingDown
from common.network import UNIX_PREFIX
from common.telemetry.logs import get_logger
from common.trust.identity import own_identity
from protos import cluster_pb2
from runner.core.host.exits import blamed_devices, explain_exit, has_loaded, refused_bytes
from runner.core.host.tunnel import Purpose
from runner.host import metrics
from runner.host.home import HostHome
from runner.host.lending.borrowing import Borrowed, Borrower, LenderUnreachable, addressed, with_status
from runner.host.processes.children import runner_command
from runner.host.processes.process import ProcessHandle, read_log_tail, start_ticks, take_lock
from runner.host.processes.spawning import spawn_runner, start_kind
from runner.host.processes.stopping import REAP_TIMEOUT_S, DrainDeadline, kill_process, stop_process, wait_until_gone
from runner.host.runners.load_progress import FetchProgress, Preparation, PrepareFiles, show_last_error
from runner.host.runners.runner_identity import RunnerIdentity, own_runner
from runner.host.runners.runner_link import HUNG_AFTER_S, Silence, is_placement, watch_pings, watch_status
from runner.host.runners.runner_notes import RunnerNote, write_note
from runner.host.runners.runner_spec import RunnerSpec, advertised, own_devices
from runner.host.states.link import StateConnection, domain_of
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates

log = get_logger()

# Interpreter, imports and a bound port; the load itself comes after the hello. Generous, because disks may be cold.
HELLO_TIMEOUT_S = 30.0
DYING_S = 1.0  # from the end of its output to the end of the process
# After the exit: what the runner said last may still be on its way.
LAST_WORDS_S = 0.2
LAST_STATES_S = 2.0  # likewise, of the states that it saved last
STOPPED = "the runner was stopped"

_SETTLED = frozenset(
    {cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_NO_SLOTS, cluster_pb2.RUNNER_STATE_ERROR}
)


class HostRunner:
    """See the module. `ended` is set when the process is gone and its files are removed."""

    def __init__(
        self, spec: RunnerSpec, home: HostHome, clock: Clock, borrower: Borrower, states: NodeStates, peers: PeerStates
    ) -> None:
        self.spec = spec
        self.changes = Changes()
        self.ended = asyncio.Event()
        self.stop_requested = False
        self._home = home
        self._clock = clock
        self._borrower = borrower
        self._states = states
        self._peers = peers
        self._states_path = home.states_socket_path(spec.short_name())
        self._borrowed: Borrowed | None = None
        identity = own_identity()
        self._identity = None if identity is None else RunnerIdentity(identity, spec.placement_id, clock)
        self._peer = own_runner(spec.placement_id)
        self._process: ProcessHandle | None = None
        self._record = cluster_pb2.RunnerRecord()
        self._record.CopyFrom(spec.record)
        self._record.status.state = cluster_pb2.RUNNER_STATE_LAUNCHED
        self._socket_path = ""
        self._log_path = home.logs_directory / f"runner-{spec.placement_id}-{spec.generation}.log"
        self._status_at_s = clock.now_s()
        self._silence = Silence(clock)
        self.engine_hung = asyncio.Event()  # its thread is blocked, as with a device that hangs
        self._hung = ""  # why the runner was ended
        self._progress: FetchProgress | None = None  # of what comes before the engine reads the files
        self._drain = DrainDeadline(clock)
        self._stopping: asyncio.Task[None] | None = None
        self._life: asyncio.Task[None] | None = None

    # -- what others read ---------------------------------------------------------------------------------------------

    def record(self) -> cluster_pb2.RunnerRecord:
        """Return a copy of the runner's record as of now: idle time grows between the runner's own reports."""
        record = cluster_pb2.RunnerRecord()
        record.CopyFrom(self._record)
        status = record.status
        if self._progress is not None:
            self._progress.show(status)
        show_last_error(status, self._log_path)
        if status.state == cluster_pb2.RUNNER_STATE_READY and not status.slots_busy and not status.queued:
            status.idle_ms += max(0, round((self._clock.now_s() - self._status_at_s) * MS_PER_S))
        if self._silence.is_long and status.state in (
            cluster_pb2.RUNNER_STATE_LOADING,
            cluster_pb2.RUNNER_STATE_READY,
            cluster_pb2.RUNNER_STATE_NO_SLOTS,
        ):
            status.state = cluster_pb2.RUNNER_STATE_NOT_RESPONDING
        if self.unreaped_pid is not None:  # whatever it said last: it holds what it holds
            status.state = cluster_pb2.RUNNER_STATE_NOT_RESPONDING
            status.ClearField("error")
        return record

    @property
    def unreaped_pid(self) -> int | None:
        """Of a process that SIGKILL has not ended in time; None: there is none."""
        process = self._process
        return None if process is None or self.ended.is_set() or not process.unreaped.is_set() else process.pid

    @property
    def state(self) -> "cluster_pb2.RunnerState.ValueType":
        """State as the runner last said, or ERROR after its end."""
        return self._record.status.state

    def memory(self) -> cluster_pb2.MemoryReport:
        """Return the memory as reported, else as planned."""
        status = self._record.status
        return status.memory if status.HasField("memory") else self.spec.planned

    @property
    def load_fraction(self) -> float:
        """0..1."""
        return self._record.status.load_fraction

    @property
    def is_settled(self) -> bool:
        """The start is over, for better or worse."""
        return self.state in _SETTLED

    def lose_lenders(self, node_ids: frozenset[str]) -> None:
        """End the runner if it uses devices of these nodes."""
        if self._borrowed is not None:
            self._borrowed.lose(node_ids)

    def owns(self, path: Path) -> bool:
        """Return True if a file of the run directory belongs to this runner."""
        return path in (self._note_path, self._lock_path, self._folder)

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        predecessor: "HostRunner | None",
        listen: str,
        advertise: str,
        first: tuple[Preparation, PrepareFiles] | None = None,
    ) -> None:
        """Spawn the process once its files are here and `predecessor` is gone, and follow it."""
        self._life = asyncio.create_task(self._live(predecessor, listen, advertise, first))
        self._life.add_done_callback(_log_bug)

    def adopt(self, process: ProcessHandle, note: RunnerNote) -> None:
        """Follow a process that an earlier host started."""
        self._process = process
        self._socket_path = note.socket_path
        self._log_path = Path(note.log_path)
        self._life = asyncio.create_task(self._live_adopted(process))
        self._life.add_done_callback(_log_bug)

    async def stop(self, *, drain_s: float) -> None:
        """Drain, SIGTERM, grace, SIGKILL; returns when the process is gone. Callers may leave: the stop goes on.

        A second call may shorten the drain of the first.

        Raises:
            ModelUnavailable: not even SIGKILL has ended it in time.
        """
        self.stop_requested = True
        self._drain.allow(drain_s)
        if self._process is None and self._life is not None:
            self._life.cancel()  # still waits for its predecessor; _live cleans up
        elif self._stopping is None and self._process is not None:
            self._stopping = asyncio.create_task(stop_process(self._process, self._drain))
        await wait_until_gone(self.ended, self._process)

    async def _live(
        self,
        predecessor: "HostRunner | None",
        listen: str,
        advertise: str,
        first: tuple[Preparation, PrepareFiles] | None,
    ) -> None:
        try:
            if first is not None:
                what, prepare = first
                progress = self._progress = FetchProgress(what)
                self.spec = await prepare(partial(self._tell_prepared, progress))
                progress.is_over = True
            if predecessor is not None:
                await predecessor.stop(drain_s=0)
            await self._spawn(listen, advertise)
            assert self._process is not None  # _spawn returned
            await self._follow(self._process)
        except PunaError as error:
            if isinstance(error, LenderUnreachable):
                self._record.status.error.lender_id = error.node_id
            self._fail(error.reason, error.message, None)
        except OSError as error:
            reason = DiskFull.reason if error.errno == errno.ENOSPC else InternalError.reason
            self._fail(reason, f"cannot start a runner: {error}", None)
        finally:
            await self._finish()

    async def _live_adopted(self, process: ProcessHandle) -> None:
        try:
            address = self._record.address  # empty: the earlier host died before the hello
            if address and await is_placement(address, self._peer, self._record.placement, clock=self._clock):
                log.info("runner.adopted", placement=self.spec.placement_id, pid=process.pid)
                await self._follow(process)
            else:
                log.warning("runner.not_ours", placement=self.spec.placement_id, pid=process.pid)
                await kill_process(process)
                self._fail(RunnerLost.reason, "the runner did not answer to the new host", None)
        finally:
            await self._finish()

    async def _spawn(self, listen: str, advertise: str) -> None:
        """Start the process, note it, and read its hello. Sets `_process`."""
        spec = self.spec
        if listen == UNIX_PREFIX:
            self._socket_path = str(self._home.socket_path(spec.short_name()))
        self._borrowed = await self._borrower.borrow(spec.peers, Purpose.SERVE)
        layout = addressed(spec.record.layout, self._borrowed)
        inherited = [take_lock(self._lock_path)]
        try:
            self._folder.mkdir(mode=0o700)
            states_path = str(self._states_path) if self._states.state_bytes_max else ""
            arguments = spec.arguments(self._socket_path, listen=listen, layout=layout, states_path=states_path)
            if self._identity is not None and not self._socket_path:
                inherited.append(self._identity.hand_over())
                arguments += ["--identity-fd", str(inherited[-1])]
            command = runner_command("serve", arguments)
            started_s = self._clock.now_s()
            spawned = await spawn_runner(
                command, log_path=self._log_path, inherited=inherited, environment=spec.environment
            )
        finally:
            for descriptor in inherited:  # the runner has its own
                os.close(descriptor)
        self._process = spawned.process
        self._record.pid = spawned.process.pid
        log.info(
            "runner.spawned",
            placement=spec.placement_id,
            generation=spec.generation,
            model=spec.record.model_name,
            pid=spawned.process.pid,
            how=start_kind(spawned.process),
        )
        await self._write_note()
        line = await spawned.hello(HELLO_TIMEOUT_S)
        try:
            hello = orjson.loads(line)
            self._record.address = advertised(str(hello["address"]), advertise)
            self._record.metrics_address = advertised(str(hello["metrics_address"]), advertise)
            self._record.placement.incarnation = str(hello["incarnation"])
        except (ValueError, KeyError, TypeError):
            if not await spawned.process.wait(DYING_S):
                await kill_process(spawned.process)
            return  # _follow explains the end from exit code and log
        os.chown(self._folder, os.geteuid(), os.getegid())  # from its user: gateways connect in folders of ours alone
        metrics.START_SECONDS.labels(how=start_kind(spawned.process)).observe(self._clock.now_s() - started_s)
        self._silence.hear()
        await self._write_note()
        self.changes.notify()

    async def _follow(self, process: ProcessHandle) -> None:
        """Watch the runner until its process is gone; then say why it ended."""
        address = self._record.address
        connection = StateConnection(
            self._states, self._peers, self._clock, path=str(self._states_path), domain=domain_of(self.spec.record)
        )
        states = asyncio.create_task(connection.run(process.exited))
        watches = [asyncio.create_task(watch_status(address, self._peer, take=self._take_status, gone=process.exited))]
        if address:
            watches += [
                asyncio.create_task(watch_pings(address, self._peer, heard=self._silence.hear, gone=process.exited)),
                asyncio.create_task(self._watch_silence(process)),
                asyncio.create_task(self._watch_engine(process)),
            ]
        if self._identity is not None and address and not self._socket_path:
            watches.append(asyncio.create_task(self._identity.keep(address, process.exited)))
        if self._borrowed is not None:
            watches.append(asyncio.create_task(self._watch_lenders(self._borrowed, process)))
        try:
            await process.exited.wait()
            await asyncio.wait(watches[:1], timeout=LAST_WORDS_S)
            await asyncio.wait({states}, timeout=LAST_STATES_S)
        finally:
            watches.append(states)
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        said = self._record.status.error if self.state == cluster_pb2.RUNNER_STATE_ERROR else None
        lost_node = self._borrowed.lost_node if self._borrowed is not None else ""
        if self.stop_requested:
            self._fail(ShuttingDown.reason, STOPPED, process.exit_code)
        elif lost_node:  # the engine aborts when a device is gone: what it says then is no news
            message = f"node {lost_node} no longer lends the devices that the runner uses"
            self._fail(RunnerLost.reason, message, process.exit_code)
        elif self._hung:
            self._fail(RunnerLost.reason, self._hung, process.exit_code)
        elif said is not None and said.reason:
            self._fail(said.reason, said.message, process.exit_code)
        else:
            tail = read_log_tail(self._log_path)
            self._record.status.load_fraction = max(self.load_fraction, float(has_loaded(tail)))
            cause = explain_exit(process.exit_code, tail, was_ready=self.load_fraction == 1.0)
            if cause.reason == DeviceMemoryExhausted.reason:
                self._record.status.error.attempted.CopyFrom(self._attempted(cause.message))
            self._fail(cause.reason, cause.message, process.exit_code)

    def _attempted(self, message: str) -> cluster_pb2.MemoryReport:
        """Return what was planned and what was refused on the devices that an error of the engine is about."""
        planned = self.spec.planned
        report = cluster_pb2.MemoryReport(origin=cluster_pb2.MEMORY_ORIGIN_ATTEMPTED, host=planned.host)
        blamed = blamed_devices(message, own_devices(self.spec))
        for device in planned.devices:
            if device.device_id in blamed and not device.node_id:
                report.devices.add().CopyFrom(device)
                report.devices[-1].graph_bytes += refused_bytes(message)
        return report

    async def _watch_lenders(self, borrowed: Borrowed, process: ProcessHandle) -> None:
        """Without one of its devices a runner can never answer again; it would only notice at its next request."""
        await borrowed.lost.wait()
        log.warning("runner.lender_lost", placement=self.spec.placement_id, node=borrowed.lost_node)
        await kill_process(process)

    async def _watch_silence(self, process: ProcessHandle) -> None:
        placement_id = self.spec.placement_id
        if await self._silence.grows_too_long(process, placement_id=placement_id, changed=self.changes.notify):
            self._hung = f"the runner did not answer for {HUNG_AFTER_S:g} s"
            await kill_process(process)

    async def _watch_engine(self, process: ProcessHandle) -> None:
        """End a runner whose engine thread is blocked by a device: its event loop answers pings as before."""
        await self.engine_hung.wait()
        log.error("runner.hung", placement=self.spec.placement_id, text=self._hung)
        await kill_process(process)

    async def _finish(self) -> None:
        """However the life ended: nothing of the runner is left behind."""
        process = self._process
        if self._borrowed is not None:
            await self._borrowed.close()
        if process is not None and not process.exited.is_set():
            process.kill_group()  # only when our own task is cancelled: the host goes down in disorder
            if not await process.wait(REAP_TIMEOUT_S):
                return  # its note stays: the next host takes it over
        if not self._record.status.HasField("error"):
            exit_code = None if process is None else process.exit_code
            if self.stop_requested:
                self._fail(ShuttingDown.reason, STOPPED, exit_code)
            else:  # a bug of ours, or our own task was cancelled
                self._fail(InternalError.reason, "the host stopped to follow the runner", exit_code)
        self._remove_files()
        self.ended.set()
        self.changes.notify()

    # -- pieces -------------------------------------------------------------------------------------------------------

    @property
    def _note_path(self) -> Path:
        return self._home.run_directory / f"{self.spec.placement_id}.json"

    @property
    def _lock_path(self) -> Path:
        return self._home.run_directory / f"{self.spec.placement_id}.lock"

    @property
    def _folder(self) -> Path:
        """Of its sockets."""
        return self._states_path.parent

    def _remove_files(self) -> None:
        for path in (self._note_path, self._lock_path):
            path.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell_prepared(self, progress: FetchProgress, done_bytes: int, total_bytes: int) -> None:
        progress.tell(done_bytes, total_bytes)
        self.changes.notify()

    async def _write_note(self) -> None:
        ticks = start_ticks(self._record.pid)
        if ticks is None:
            return  # already gone, nothing to adopt
        kept = cluster_pb2.RunnerRecord()
        kept.CopyFrom(self._record)
        note = RunnerNote(
            start_ticks=ticks,
            socket_path=self._socket_path,
            log_path=str(self._log_path),
            model_path=str(self.spec.files.model),
            record=kept,
            planned=self.spec.planned,
        )
        await asyncio.to_thread(write_note, self._note_path, note)

    def _take_status(self, status: cluster_pb2.RunnerStatus) -> None:
        before, self._status_at_s = self.state, self._clock.now_s()
        self._silence.hear()
        self._record = with_status(self._record, status)
        if status.hung_ms and not self.engine_hung.is_set():
            self._hung = f"the runner's engine made no progress for {status.hung_ms / MS_PER_S:.1f} s"
            self.engine_hung.set()
        if status.state != before:
            log.info(
                "runner.state",
                placement=self.spec.placement_id,
                state=cluster_pb2.RunnerState.Name(status.state).removeprefix("RUNNER_STATE_").lower(),
            )
        self.changes.notify()

    def _fail(self, reason: str, message: str, exit_code: int | None) -> None:
        """Record the end in the status."""
        status = self._record.status
        status.state = cluster_pb2.RUNNER_STATE_ERROR
        status.slots_busy = status.queued = 0
        status.error.reason, status.error.message = reason, message
        if exit_code is not None:
            status.error.exit_code = exit_code
        metrics.RUNNER_ENDS.labels(reason=reason).inc()
        log.info(
            "runner.ended",
            placement=self.spec.placement_id,
            generation=self.spec.generation,
            model=self.spec.record.model_name,
            reason=reason,
            exit_code=exit_code,
            text=message,
        )
        self.changes.notify()


def _log_bug(life: asyncio.Task[None]) -> None:
    error = None if life.cancelled() else life.exception()
    if error is not None:
        log.error("runner.life_failed", exc_info=error)

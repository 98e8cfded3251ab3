"""All runners of the node: executes the scheduler's commands in order, adopts what an earlier host left, stops all."""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from common.changes import Changes
from common.clock import Clock
from common.errors import (
    DeviceLost,
    DeviceMemoryExhausted,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    ShuttingDown,
)
from common.telemetry.logs import get_logger
from common.trust.revocations import Revocations
from protos import cluster_pb2, host_pb2
from runner.core.host.commands import Running, attaches, check_stop
from runner.core.host.exits import blamed_devices
from runner.core.host.fences import Fence
from runner.core.host.leases import servers_of
from runner.core.host.promises import MemoryNeed, OutstandingLoad, find_excess, find_shortfall
from runner.core.model import model_files as core_files
from runner.host import converters, metrics
from runner.host.devices.devices import Devices
from runner.host.fence_store import FenceStore
from runner.host.home import HostHome
from runner.host.lending.borrowing import Borrower
from runner.host.lending.lease import DeviceLease
from runner.host.lending.lending import Lender
from runner.host.models.model_files import NodeModels, OnProgress
from runner.host.processes.process import ProcessHandle, find_runners_of
from runner.host.registry.origin import Origins, origins_of
from runner.host.runners.device_users import DeviceUsers
from runner.host.runners.load_progress import FETCHING, VERIFYING, Preparation, PrepareFiles
from runner.host.runners.runner import HostRunner
from runner.host.runners.runner_notes import read_notes
from runner.host.runners.runner_spec import RunnerSpec, own_devices
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates

log = get_logger()

ERROR_KEPT_S = 30.0  # how long an ended runner stays in the reports, so that all readers see the cause
RUNNERS_MAX = 256
DRAIN_AT_EXIT_S = 5.0
PLACEMENT_ID_PATTERN = re.compile(r"[A-Za-z0-9-]{1,64}")


class RunnerSupervisor:
    """Owner of the node's runners. Commands that change something pass one after another through `_commands`."""

    def __init__(  # noqa: PLR0913  # the parts of a host that it puts to work
        self,
        *,
        home: HostHome,
        fences: FenceStore,
        models: NodeModels,
        users: DeviceUsers,
        devices: Devices,
        clock: Clock,
        runner_listen: str,
        runner_advertise: str,
        lender: Lender,
        borrower: Borrower,
        origins: Origins,
        states: NodeStates,
        peers: PeerStates,
    ) -> None:
        self.changes = Changes()
        self._home = home
        self._fences = fences
        self._models = models
        self._devices = devices
        self._clock = clock
        self._listen = runner_listen
        self._advertise = runner_advertise
        self._lender = lender
        self._borrower = borrower
        self._origins = origins
        self._states = states
        self._peers = peers
        self._users = users
        # Fair, and therefore the queue of commands: held while one is decided and noted, never while a runner loads.
        self._commands = asyncio.Lock()
        self._closing = False
        self._watches: set[asyncio.Task[None]] = set()

    def records(self) -> list[cluster_pb2.RunnerRecord]:
        """Every runner, ended ones for a while too, by placement id."""
        return [self._users.runners[placement_id].record() for placement_id in sorted(self._users.runners)]

    async def start(self, request: host_pb2.StartRequest) -> HostRunner:
        """Execute a Start; returns the runner, which goes on by itself.

        Raises:
            StaleFence, PlacementMismatch, ModelNotFound, BadModelFile, DeviceMemoryExhausted, InvalidRequest,
            ShuttingDown: nothing was started.
        """
        fence, placement_id, generation = _checked(request.fence, request.placement)
        async with self._commands:
            self._refuse_if_closing()
            await asyncio.to_thread(self._fences.accept, fence)
            known = self._users.runners.get(placement_id)
            spec = RunnerSpec(
                record=cluster_pb2.RunnerRecord(
                    placement=cluster_pb2.PlacementRef(placement_id=placement_id, generation=generation),
                    model_name=request.model_name,
                    model_digest=request.model_digest,
                    layout=request.layout,
                    asked=request.asked if request.HasField("asked") else None,
                ),
                files=core_files.ModelFiles(model=self._home.directory),
                planned=request.planned,
                peers=tuple(request.peers),
                is_extra=request.is_extra,
            )
            running = None if known is None else _running(known)
            if attaches(running, generation=generation, spec=spec.fingerprint()):
                assert known is not None  # there is nothing else to attach to
                metrics.RUNNER_STARTS.labels(result="attached").inc()
                return known
            return self._launch(spec, request, predecessor=known)

    async def lend(self, request: host_pb2.LendRequest) -> DeviceLease:
        """Execute a Lend; returns the lease once its devices can be reached.

        Raises:
            StaleFence, PlacementMismatch, DeviceMemoryExhausted, InvalidRequest, ModelUnavailable, ShuttingDown:
            nothing was lent.
        """
        fence, placement_id, generation = _checked(request.fence, request.placement)
        terms = converters.to_terms(request)
        async with self._commands:
            self._refuse_if_closing()
            await asyncio.to_thread(self._fences.accept, fence)
            lease = await self._lender.find(placement_id, generation, terms)
            if lease is None:
                need = terms.need()
                self._check_servers(need.total_bytes())
                self._check_need(need)
                lease = self._lender.make(placement_id, generation, terms, borrower_node_id=request.borrower_node_id)
        await lease.ready.wait()
        if lease.failure:
            raise ModelUnavailable(lease.failure)
        return lease

    async def stop(self, request: host_pb2.StopRequest) -> None:
        """Execute a Stop; returns when the process is gone, and what was lent to the placement is back.

        Raises:
            StaleFence, PlacementMismatch, InvalidRequest: nothing was stopped.
            ModelUnavailable: not even SIGKILL has ended the process in time.
        """
        fence, placement_id, generation = _checked(request.fence, request.placement)
        async with self._commands:
            await asyncio.to_thread(self._fences.accept, fence)
            await self._lender.end(placement_id, generation=generation)
            runner = self._users.runners.get(placement_id)
            if runner is None:
                return
            check_stop(_running(runner), generation=generation)
        log.info("runner.stopping", placement=placement_id, drain_ms=request.drain_ms)
        await runner.stop(drain_s=request.drain_ms / 1000)

    async def reset_device(self, request: host_pb2.ResetDeviceRequest) -> cluster_pb2.Device:
        """Execute a ResetDevice; returns the device after its test.

        Raises:
            StaleFence, DeviceNotFound, InvalidRequest: nothing was done.
        """
        fence = _checked_fence(request.fence)
        async with self._commands:
            await asyncio.to_thread(self._fences.accept, fence)
        return await self._devices.reset(request.device_id)

    async def excuse_crash(self, request: host_pb2.ExcuseCrashRequest) -> None:
        """Execute an ExcuseCrash.

        Raises:
            StaleFence, InvalidRequest: nothing was done.
        """
        fence, placement_id, generation = _checked(request.fence, request.placement)
        async with self._commands:
            await asyncio.to_thread(self._fences.accept, fence)
        self._devices.excuse(_replica(placement_id, generation))

    async def adopt(self) -> None:
        """Take over the runners that an earlier host left, and kill those without a note."""
        noted: set[str] = set()
        for path, note in read_notes(self._home.run_directory).items():
            process = ProcessHandle.adopt(note.record.pid, note.start_ticks)
            if process is None:
                path.unlink(missing_ok=True)
                continue
            spec = note.spec()
            noted.add(spec.placement_id)
            runner = HostRunner(spec, self._home, self._clock, self._borrower, self._states, self._peers)
            self._enter(runner)
            runner.adopt(process, note)
        for placement_id, pid in find_runners_of(self._home.run_directory).items():
            if placement_id not in noted:
                log.warning("runner.orphan_killed", placement=placement_id, pid=pid)
                os.killpg(pid, signal.SIGKILL)
        for leftover in self._home.run_directory.iterdir():
            if any(runner.owns(leftover) for runner in self._users.runners.values()):
                continue
            if leftover.is_dir():
                shutil.rmtree(leftover)
            elif leftover.suffix == ".lock":
                leftover.unlink(missing_ok=True)

    async def watch_removals(self, revocations: Revocations) -> None:
        """End what is lent to nodes that are removed from the cluster, or borrowed from them; runs for ever."""
        while True:
            before, seen = dict(revocations.entries), revocations.changes.version
            await revocations.changes.beyond(seen)
            removed = frozenset(dict(revocations.entries.items() - before.items()))
            self._lender.end_loans_to(removed)
            for runner in self._users.runners.values():
                runner.lose_lenders(removed)

    async def close(self) -> None:
        """Stop every runner; nothing starts from here on."""
        async with self._commands:
            self._closing = True
        stops = (runner.stop(drain_s=DRAIN_AT_EXIT_S) for runner in self._users.runners.values())
        await asyncio.gather(*stops, return_exceptions=True)  # one that cannot be ended is left to the next host
        await self._lender.close()
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)

    def _launch(
        self, spec: RunnerSpec, request: host_pb2.StartRequest, *, predecessor: HostRunner | None
    ) -> HostRunner:
        spec = replace(spec, environment=self._devices.environment(own_devices(spec)))
        first: tuple[Preparation, PrepareFiles] | None = None
        try:
            spec = self._with_files(spec)
            if self._models.unverified_blobs(spec.record.model_digest, spec.record.layout):
                first = VERIFYING, partial(self._verify, spec)
        except ModelNotFound:
            origins = origins_of(request)
            if not origins:
                raise
            first = FETCHING, partial(self._fetch, spec, origins)
        if predecessor is None and len(self._users.runners) >= RUNNERS_MAX:
            raise DeviceMemoryExhausted(f"this node already has {RUNNERS_MAX} runners")
        self._check_servers(own_devices(spec), replaced=predecessor)
        need = converters.to_need(request.planned)
        if predecessor is not None:  # what it holds comes back before its successor starts
            need = need.less(converters.to_need(predecessor.spec.planned))
        self._check_need(need, replaced=predecessor)
        self._home.prune_logs()
        runner = HostRunner(spec, self._home, self._clock, self._borrower, self._states, self._peers)
        self._enter(runner)
        runner.start(predecessor=predecessor, listen=self._listen, advertise=self._advertise, first=first)
        metrics.RUNNER_STARTS.labels(result="spawned").inc()
        return runner

    def _with_files(self, spec: RunnerSpec) -> RunnerSpec:
        files = self._models.files_of(spec.record.model_digest, spec.record.layout)
        record = cluster_pb2.RunnerRecord()
        record.CopyFrom(spec.record)
        record.model_name = record.model_name or self._models.find(record.model_digest).model.name
        return replace(spec, files=files, record=record)

    async def _fetch(
        self, spec: RunnerSpec, origins: Sequence[host_pb2.ModelOrigin], on_progress: OnProgress
    ) -> RunnerSpec:
        """Have the files from the nodes that have them."""
        await self._origins.fetch(origins, on_progress)
        return self._with_files(spec)

    async def _verify(self, spec: RunnerSpec, on_progress: OnProgress) -> RunnerSpec:
        """Have every blob read that the runner will load."""
        await self._models.verify(spec.record.model_digest, spec.record.layout, on_progress)
        return self._with_files(spec)

    def _check_need(self, need: MemoryNeed, *, replaced: HostRunner | None = None) -> None:
        """Check a plan against the host's own figures, and against the operator's limits over all placements.

        Raises:
            DeviceMemoryExhausted: less is free than planned, or this placement would pass a limit.
        """
        loading = [
            OutstandingLoad(need=converters.to_need(runner.spec.planned), fraction=runner.load_fraction)
            for runner in self._users.runners.values()
            if runner is not replaced and not runner.is_settled
        ]
        loading += self._users.leases.outstanding()
        text = ""
        if short := find_shortfall(need, free_bytes=self._devices.free_bytes(), loading=loading):
            text = f"device {short.device_id} has {short.available_bytes} bytes free, {short.needed_bytes} are needed"
        elif excess := find_excess(
            need, promised_bytes=self._users.promised_bytes(), limits_bytes=self._devices.limits()
        ):
            text = (
                f"placements may take {excess.available_bytes} more bytes of device {excess.device_id}"
                f" (PUNA_DEVICE_MAX_BYTES), {excess.needed_bytes} are needed"
            )
        if text:
            metrics.RUNNER_STARTS.labels(result="no_memory").inc()
            raise DeviceMemoryExhausted(text)

    def _check_servers(self, device_ids: Iterable[str], *, replaced: HostRunner | None = None) -> None:
        """Check that no RPC server gets a second client, which would wait for it without an end.

        Raises:
            DeviceMemoryExhausted: one of the devices is in use.
        """
        taken = servers_of(self._users.leases.device_ids())
        for runner in self._users.live():
            if runner is not replaced:
                taken |= servers_of(own_devices(runner.spec))
        busy = sorted(taken & servers_of(device_ids))
        if busy:
            raise DeviceMemoryExhausted(f"the devices of RPC server {busy[0]} serve another runner")

    def _enter(self, runner: HostRunner) -> None:
        self._users.runners[runner.spec.placement_id] = runner
        watch = asyncio.create_task(self._watch(runner))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        metrics.RUNNERS.inc()
        self.changes.notify()

    async def _watch(self, runner: HostRunner) -> None:
        """Pass the runner's changes on; forget it some time after its end, at once after an orderly one."""
        seen = 0
        while not runner.ended.is_set():
            seen = await runner.changes.beyond(seen)
            self.changes.notify()
        metrics.RUNNERS.dec()
        error = runner.record().status.error
        if not runner.stop_requested:
            self._devices.see_crash(own_devices(runner.spec), hung=runner.engine_hung.is_set())
        if error.reason == DeviceLost.reason and not runner.stop_requested:
            self._devices.see_device_error(
                blamed_devices(error.message, own_devices(runner.spec)),
                error.message,
                model_digest=runner.spec.record.model_digest,
                replica=_replica(runner.spec.placement_id, runner.spec.generation),
            )
        self.changes.notify()
        if not runner.stop_requested:
            await asyncio.sleep(ERROR_KEPT_S)
        if self._users.runners.get(runner.spec.placement_id) is runner:
            del self._users.runners[runner.spec.placement_id]
            self.changes.notify()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise ShuttingDown("this node is going down")


def _replica(placement_id: str, generation: int) -> str:
    return f"{placement_id}/{generation}"


def _running(runner: HostRunner) -> Running:
    return Running(generation=runner.spec.generation, spec=runner.spec.fingerprint())


def _checked(fence: host_pb2.Fence, placement: cluster_pb2.PlacementRef) -> tuple[Fence, str, int]:
    """Check the parts of a command that become file names or decide between commands.

    Raises:
        InvalidRequest: one of them is missing or malformed.
    """
    checked = _checked_fence(fence)
    if not PLACEMENT_ID_PATTERN.fullmatch(placement.placement_id):
        raise InvalidRequest("placement_id must be a UUID", param="placement.placement_id")
    if placement.generation == 0:
        raise InvalidRequest("generations start at 1", param="placement.generation")
    return checked, placement.placement_id, placement.generation


def _checked_fence(fence: host_pb2.Fence) -> Fence:
    if fence.number == 0 or not fence.leader_id:
        raise InvalidRequest("a command needs a fence", param="fence")
    return Fence(number=fence.number, leader_id=fence.leader_id)

"""Faults of this node for exercises: each is proven, lasts as long as its call, and is undone with it."""

import asyncio
import errno
import os
import select
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.clock import MS_PER_S
from common.errors import InvalidRequest, ModelUnavailable, NotSupported, PermissionDenied, PlacementMismatch
from common.process_faults import DiskFilled, InjectedFault, Killed, Stopped, ThreadBlocked
from common.telemetry.logs import get_logger
from protos import host_pb2
from runner.core.host.environment import child_environment
from runner.engine.threads.engine_thread import ENGINE_THREAD
from runner.host import metrics
from runner.host.devices.devices import Devices
from runner.host.processes.children import runner_command
from runner.host.runners.device_users import DeviceUsers

log = get_logger()

DURATION_MS_MAX = 3_600_000
_HAPPENS_WITHIN_S = 5.0
_LOOK_S = 0.02
_HOLD_S_MAX = 60.0  # a GPU's driver may take seconds to start


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFaults:
    """Makes them. `directories` can be filled, by name."""

    users: DeviceUsers
    devices: Devices
    directories: Mapping[str, Path]
    is_production: bool

    async def inject(self, request: host_pb2.InjectFaultRequest) -> AsyncIterator[str]:
        """Yield what happened once it is proven; the fault ends with the iteration.

        Raises:
            PermissionDenied: the node is marked as production.
            InvalidRequest, DeviceNotFound, PlacementMismatch: there is no such fault, duration or target.
            NotSupported: this machine cannot have it.
            ModelUnavailable: it did not happen.
        """
        if self.is_production:
            raise PermissionDenied("this node is marked as production (PUNA_PRODUCTION) and takes no faults")
        if not 1 <= request.duration_ms <= DURATION_MS_MAX:
            raise InvalidRequest(f"duration_ms must be 1 to {DURATION_MS_MAX}", param="duration_ms")
        fault, text = self._fault(request)
        kind = host_pb2.FaultKind.Name(request.kind).removeprefix("FAULT_KIND_").lower()
        fields = {"kind": kind, "target": request.target, "text": text}
        injecting = asyncio.create_task(asyncio.to_thread(fault.inject))
        try:
            try:
                await asyncio.shield(injecting)
            except OSError as error:
                raise NotSupported(f"{text}: this node cannot have that ({error.strerror or error})") from error
            await _proven(fault, text)
            log.warning("fault.injected", **fields, duration_s=request.duration_ms / MS_PER_S)
            metrics.FAULTS.labels(kind).inc()
            yield text
            if not isinstance(fault, Killed):
                await asyncio.sleep(request.duration_ms / MS_PER_S)
        finally:
            await asyncio.wait({injecting})  # also if the call was cancelled meanwhile: it ends soon
            fault.heal()
            log.warning("fault.ended", **fields)

    def _fault(self, request: host_pb2.InjectFaultRequest) -> tuple[InjectedFault, str]:
        """Return the fault and what it is for people."""
        target = request.target
        match request.kind:
            case host_pb2.FAULT_KIND_KILL:
                return Killed(self._pid(target)), f"the runner of placement {target} is killed"
            case host_pb2.FAULT_KIND_STOP:
                return Stopped(self._pid(target)), f"the runner of placement {target} is stopped"
            case host_pb2.FAULT_KIND_BLOCK:
                text = f"the engine thread of placement {target} stands still"
                return ThreadBlocked(self._pid(target), ENGINE_THREAD), text
            case host_pb2.FAULT_KIND_DISK:
                if target not in self.directories:
                    raise InvalidRequest(f"target must be one of {', '.join(self.directories)}", param="target")
                directory = self.directories[target]
                return DiskFilled(directory, request.leave_bytes), f"the file system of {directory} is filled"
            case host_pb2.FAULT_KIND_MEMORY:
                return self._memory(request), f"the memory of device {target} is taken"
            case _:
                raise InvalidRequest(f"there is no fault of kind {request.kind}", param="kind")

    def _pid(self, placement_id: str) -> int:
        runner = self.users.runners.get(placement_id)
        pid = runner.record().pid if runner is not None and not runner.ended.is_set() else 0
        if not pid:
            raise PlacementMismatch(f"no runner of placement {placement_id!r} runs on this node")
        return pid

    def _memory(self, request: host_pb2.InjectFaultRequest) -> InjectedFault:
        device = self.devices.child_request(request.target)
        arguments = ["--hold", device.device_id, "--backend", device.backend, "--leave", str(request.leave_bytes)]
        arguments += ["--rpc", device.rpc_address] if device.rpc_address else []
        return MemoryTaken(arguments, {**child_environment(os.environ), **device.environment})


@dataclass(slots=True)
class MemoryTaken(InjectedFault):
    """A child process holds memory of a device."""

    arguments: list[str]
    environment: Mapping[str, str]
    _child: "subprocess.Popen[bytes] | None" = None
    _held_bytes: int = 0

    def inject(self) -> None:
        """See InjectedFault."""
        self._child = subprocess.Popen(
            runner_command("probe", self.arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,
        )
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], _HOLD_S_MAX)[0]:
            self._child.kill()
            raise TimeoutError(errno.ETIMEDOUT, "the device does not answer")
        self._held_bytes = int(self._child.stdout.readline() or b"0")

    def has_happened(self) -> bool:
        """See InjectedFault."""
        return self._held_bytes > 0 and self._child is not None and self._child.poll() is None

    def heal(self) -> None:
        """See InjectedFault."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()


async def _proven(fault: InjectedFault, text: str) -> None:
    """Return once the fault shows.

    Raises:
        ModelUnavailable: it does not.
    """
    try:
        async with asyncio.timeout(_HAPPENS_WITHIN_S):
            while not fault.has_happened():  # noqa: ASYNC110  # the kernel has no event for it
                await asyncio.sleep(_LOOK_S)
    except TimeoutError as error:
        raise ModelUnavailable(f"{text}: that did not happen") from error

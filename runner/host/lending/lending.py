"""Loans of this node: one lease for each placement of another node, with a process for its devices and an end.

A lease ends when its borrower's runner has gone, when it is stopped, when its process or another server that lends for
it dies, and when no runner takes it for `LEASE_WAIT_S`. Nothing outlives this host: the processes end with it, and the
borrower's runner, cut off, as well.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import orjson

from common.changes import Changes
from common.clock import Clock
from common.errors import DeviceMemoryExhausted, ModelUnavailable, PunaError
from common.telemetry.logs import get_logger
from protos import host_pb2
from runner.core.host.leases import LendAction, Share, Terms, decide_lend, plan_channels, rpc_server_of
from runner.host import metrics
from runner.host.home import HostHome
from runner.host.lending.lease import DeviceLease, Leases
from runner.host.processes.children import runner_command
from runner.host.processes.process import ProcessHandle
from runner.host.processes.spawning import open_log, spawn
from runner.host.processes.stopping import REAP_TIMEOUT_S, kill_process, wait_until_gone

log = get_logger()

LEASES_MAX = 64
# Interpreter, imports, backends; disks may be cold.
READY_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = REAP_TIMEOUT_S + 1.0
# From the Lend, or from the end of a measurement, to the borrower's next hold: plans are measured several times.
LEASE_WAIT_S = 60.0
FACT_BYTES_MAX = 65_536


def lender_arguments(placement_id: str, shares: Sequence[Share]) -> list[str]:
    """Return the command line after `runner rpc`."""
    devices = [word for share in shares for word in ("--device", share.device_id)]
    limits = [
        word for share in shares if share.max_bytes for word in ("--max-bytes", f"{share.device_id}={share.max_bytes}")
    ]
    weights_bytes = sum(share.weights_bytes for share in shares)
    return [
        *devices,
        *limits,
        *("--placement", placement_id, "--weights-bytes", str(weights_bytes), "--end-with-stdin"),
    ]


class LenderProcess:
    """It ends with this host, whatever happens to us: its standard input ends then."""

    def __init__(
        self, process: ProcessHandle, *, stdin: int, facts: int, on_fact: Callable[[dict[str, object]], None]
    ) -> None:
        """Take a process and our ends of its pipes."""
        self.process = process
        self._stdin, self._facts = stdin, facts
        self._on_fact = on_fact
        self._pending = bytearray()
        asyncio.get_running_loop().add_reader(self._facts, self._read)

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        log_path: Path,
        on_fact: Callable[[dict[str, object]], None],
        environment: Mapping[str, str],
    ) -> Self:
        """Start one. `on_fact` gets each line that it says: `address` first, then `device` and `used_bytes`.

        Raises:
            InternalError: the system refuses to start processes.
        """
        stdin, ours = os.pipe()
        facts, stdout = os.pipe()
        try:
            with open_log(log_path) as log_file:
                process = await spawn(
                    runner_command("rpc", arguments),
                    environment=environment,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=log_file.fileno(),
                )
        except BaseException:
            os.close(ours)
            os.close(facts)
            raise
        finally:
            os.close(stdin)
            os.close(stdout)
        return cls(process, stdin=ours, facts=facts, on_fact=on_fact)

    def close(self) -> None:
        """After its end: give the descriptors back."""
        asyncio.get_running_loop().remove_reader(self._facts)
        os.close(self._facts)
        os.close(self._stdin)

    def _read(self) -> None:
        part = os.read(self._facts, FACT_BYTES_MAX)
        if not part:
            asyncio.get_running_loop().remove_reader(self._facts)
            return
        *lines, rest = bytes(self._pending + part).split(b"\n")
        self._pending = bytearray(rest[-FACT_BYTES_MAX:])
        for line in lines:
            try:
                fact = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(fact, dict):
                self._on_fact(fact)


class Lender:
    """Owner of the leases; every method runs on the event loop and decides without waiting."""

    def __init__(
        self,
        home: HostHome,
        clock: Clock,
        leases: Leases,
        *,
        environment: Callable[[Iterable[str]], Mapping[str, str]],
        crashed: Callable[[Iterable[str]], None],
    ) -> None:
        """`environment` shows a process the devices of these ids alone; `crashed` hears of those whose server died."""
        self.changes = Changes()
        self._environment = environment
        self._crashed = crashed
        self._home = home
        self._clock = clock
        self._leases = leases
        self._lives: set[asyncio.Task[None]] = set()

    async def find(self, placement_id: str, generation: int, terms: Terms) -> DeviceLease | None:
        """Return the lease that a Lend means; None if one has to be made, after the end of the one that it replaces.

        Raises:
            PlacementMismatch: as `decide_lend`.
            DeviceMemoryExhausted: too many leases.
            ModelUnavailable: as `end`.
        """
        known = self._leases.get(placement_id)
        match decide_lend(None if known is None else known.as_lent(), generation=generation, terms=terms):
            case LendAction.KEEP:
                return known
            case LendAction.REPLACE:
                await self.end(placement_id, generation=generation)
            case LendAction.MAKE if len(self._leases) >= LEASES_MAX:
                raise DeviceMemoryExhausted(f"this node already lends to {LEASES_MAX} placements")
        return None

    def make(self, placement_id: str, generation: int, terms: Terms, *, borrower_node_id: str) -> DeviceLease:
        """Lend; the lease is usable once it is `ready` without a `failure`."""
        assert placement_id not in self._leases, "ended before it is replaced"
        lease = DeviceLease(placement_id, generation, terms, borrower_node_id)
        self._leases[placement_id] = lease
        life = asyncio.create_task(self._live(lease))
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)
        metrics.LEASES.inc()
        self.changes.notify()
        return lease

    async def end(self, placement_id: str, *, generation: int) -> None:
        """End the lease of a placement unless it is of a newer generation; returns when its process is gone.

        Raises:
            ModelUnavailable: not even SIGKILL has ended it in time.
        """
        lease = self._leases.get(placement_id)
        if lease is not None and lease.generation <= generation:
            lease.close()
            await wait_until_gone(lease.ended, lease.process)

    def end_loans_to(self, node_ids: frozenset[str]) -> None:
        """Order the end of every lease of these nodes."""
        for lease in list(self._leases.values()):
            if lease.borrower_node_id in node_ids:
                lease.close()

    async def close(self) -> None:
        """End every lease."""
        for lease in list(self._leases.values()):
            lease.close()
        if self._lives:
            await asyncio.wait(self._lives, timeout=CLOSE_TIMEOUT_S)

    async def _live(self, lease: DeviceLease) -> None:
        process: LenderProcess | None = None
        reason = "the host goes down"
        try:
            process = await self._serve(lease)
            log.info(
                "devices.lent",
                placement=lease.placement_id,
                generation=lease.generation,
                borrower=lease.borrower_node_id,
                devices=[share.device_id for share in lease.terms.shares],
            )
            reason = await self._until_over(lease, process)
        except PunaError as error:
            lease.failure = reason = error.message
        finally:
            lease.closing = True
            lease.ready.set()
            lease.break_connections()
            if process is not None:
                await kill_process(process.process)
                process.close()
            if self._leases.get(lease.placement_id) is lease:
                del self._leases[lease.placement_id]
            metrics.LEASES.dec()
            if lease.lost_server:
                self._crashed([share.device_id for share in lease.terms.shares])
            lease.ended.set()
            log.info("devices.returned", placement=lease.placement_id, reason=reason)
            self.changes.notify()

    async def _serve(self, lease: DeviceLease) -> LenderProcess | None:
        """Have an RPC server for every device.

        Raises:
            ModelUnavailable: our own one did not come up.
        """
        addresses, devices = plan_channels([share.device_id for share in lease.terms.shares])
        own = tuple(device_id for device_id in devices if rpc_server_of(device_id) is None)
        process: LenderProcess | None = None
        if own:
            process, addresses[0] = await self._spawn(lease, own)
        lease.servers, lease.devices = tuple(addresses), devices
        lease.ready.set()
        lease.changes.notify()
        return process

    async def _spawn(self, lease: DeviceLease, device_ids: tuple[str, ...]) -> tuple[LenderProcess, str]:
        listening = asyncio.Event()
        address = ""

        def take(fact: dict[str, object]) -> None:
            nonlocal address
            if "address" in fact:
                address = str(fact["address"])
                listening.set()
            elif isinstance(fact.get("device"), int) and isinstance(fact.get("used_bytes"), int):
                lease.used_bytes[device_ids[int(str(fact["device"]))]] = int(str(fact["used_bytes"]))
                self.changes.notify()

        shares: list[Share] = [share for share in lease.terms.shares if share.device_id in device_ids]
        log_path = self._home.logs_directory / f"runner-rpc-{lease.placement_id}-{lease.generation}.log"
        process = await LenderProcess.start(
            lender_arguments(lease.placement_id, shares),
            log_path=log_path,
            on_fact=take,
            environment=self._environment(device_ids),
        )
        lease.process = process.process
        waits = [asyncio.create_task(listening.wait()), asyncio.create_task(process.process.exited.wait())]
        try:
            await asyncio.wait(waits, timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await kill_process(process.process)
            process.close()
            raise
        finally:
            for wait in waits:
                wait.cancel()
        if not address:
            await kill_process(process.process)
            process.close()
            raise ModelUnavailable("the rpc runner did not come up; its log on the lending node says why")
        return process, address

    async def _until_over(self, lease: DeviceLease, process: LenderProcess | None) -> str:
        """Wait for the end; returns the reason."""
        watch: asyncio.Task[object] | None = None
        if process is not None:
            watch = asyncio.create_task(process.process.exited.wait())
            watch.add_done_callback(lambda _: lease.changes.notify())
        wait_until_s = self._clock.now_s() + LEASE_WAIT_S
        try:
            while True:
                seen = lease.changes.version
                if reason := _why_over(lease, process):
                    return reason
                if lease.in_use:
                    await lease.changes.beyond(seen)
                    wait_until_s = self._clock.now_s() + LEASE_WAIT_S
                    continue
                if self._clock.now_s() >= wait_until_s:
                    return "no runner took it"
                try:
                    async with asyncio.timeout(wait_until_s - self._clock.now_s()):
                        await lease.changes.beyond(seen)
                except TimeoutError:
                    continue
        finally:
            if watch is not None:
                watch.cancel()


def lend_response(lease: DeviceLease, *, tunnel_address: str, certificate: bytes) -> host_pb2.LendResponse:
    """Build the answer to the borrower's host."""
    return host_pb2.LendResponse(
        tunnel_address=tunnel_address,
        certificate=certificate,
        devices=[
            host_pb2.LentDevice(
                device_id=share.device_id,
                channel=lease.devices[share.device_id].channel,
                rpc_device=lease.devices[share.device_id].rpc_device,
            )
            for share in lease.terms.shares
        ],
    )


def _why_over(lease: DeviceLease, process: LenderProcess | None) -> str:
    if lease.closing:
        return "it was stopped"
    if lease.lost_server:
        return f"its server {lease.lost_server} is gone"
    if process is not None and process.process.exited.is_set():
        return f"its process ended with {process.process.exit_code}"
    return "the borrower has gone" if lease.was_served and not lease.in_use else ""

"""Puts the host together and runs it. `python -m runner host`."""

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from grpc import aio

from common.changes import Changes
from common.clock import MS_PER_S, SystemClock
from common.errors import PlacementMismatch, StartupError
from common.grpc.server import GrpcServer, bind_server, check_consent
from common.ids import new_incarnation
from common.metrics_page import serve_metrics
from common.network import UNIX_PREFIX
from common.service import run_service
from common.telemetry.device_metrics import DeviceRow
from common.telemetry.logs import drain_logs, get_logger
from common.trust.identity import own_identity
from common.trust.revocations import Revocations
from common.trust.roles import Role
from protos import cluster_pb2, discovery_pb2, host_pb2, host_pb2_grpc, store_pb2, store_pb2_grpc
from runner.core.host.environment import limits_set
from runner.cores import computing_cores
from runner.host import metrics
from runner.host.devices.decode_speeds import WINDOWS_INTERVAL_S, DecodeSpeeds
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.devices import Devices
from runner.host.devices.process_memory import FIGURES_INTERVAL_S, ProcessMemory
from runner.host.faults import NodeFaults
from runner.host.fence_store import FenceStore
from runner.host.home import HostHome
from runner.host.lending.borrowing import Borrower
from runner.host.lending.lending import Lender
from runner.host.lending.tunnel_listener import open_tunnel
from runner.host.models.model_files import NodeModels
from runner.host.processes.zygote import Zygote, use_zygote
from runner.host.registry.leftovers import tidy_up
from runner.host.registry.opening import open_fetching
from runner.host.reporter import Registrations, Sections
from runner.host.runners.core_shares import CoreShares
from runner.host.runners.device_users import DeviceUsers
from runner.host.runners.measurements import Measurements
from runner.host.runners.supervisor import RunnerSupervisor
from runner.host.servicer import HostServicer
from runner.host.settings import HostSettings
from runner.host.states.opening import open_states
from runner.host.states.store import NodeStates
from runner.host.store.servicer import ModelStoreServicer
from runner.host.store.store import Store, watch_unused

log = get_logger()

# Small model directories are known before the node shows itself; large ones follow while it already serves.
FIRST_SCAN_S = 10.0
# An engine that works has listed its devices by then; with one that hangs the node shows itself, and that it does not
# know them yet.
FIRST_LISTING_S = 5.0
STOP_GRACE_S = 1.0
EXIT_FAILED = os.EX_SOFTWARE  # of a background task: a bug
HOST_SERVICE = host_pb2.DESCRIPTOR.services_by_name["Host"].full_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments: the host is configured by its environment alone."""
    parser.epilog = "Settings come from PUNA_ variables of the environment; see docs/operators.md."


def run(args: argparse.Namespace) -> int:  # noqa: ARG001  # as every mode
    """Run the host until a signal; 0 after an orderly stop, 1 if it cannot start."""
    return run_service("host", HostSettings, serve)


async def serve(settings: HostSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then stop every runner. Runners outlive a host that fails.

    Raises:
        StartupError: an address is taken, or another host owns the directory.
    """
    _check_runner_listener(settings)
    with HostHome(settings.home_directory) as home:
        await _serve_from(home, settings, stop)


async def _serve_from(home: HostHome, settings: HostSettings, stop: asyncio.Event) -> None:
    clock = SystemClock()
    identity = discovery_pb2.HostReport(
        node_id=home.node_id(_wanted_id(settings)),
        incarnation=new_incarnation(),
        started_at_unix_ms=round(clock.wall_unix_s() * MS_PER_S),
    )
    notes = DeviceNotes(home.directory / "devices.json")
    users = DeviceUsers()
    states, peers = await open_states(settings, home, clock, node_id=identity.node_id)
    devices = Devices(
        clock,
        settings=settings.devices,
        notes=notes,
        promised_bytes=users.promised_bytes,
        in_use=users.device_ids,
        unreaped=users.unreaped,
        processes=users.holders,
    )
    devices.reserved_ram_bytes = lambda: states.unused_ram_bytes
    _warn_of_limits()
    models, store = _open_models(settings, home)
    pulls, origins = open_fetching(settings, store, home.cache_directory)
    lender = Lender(home, clock, users.leases, environment=devices.environment, crashed=devices.see_crash)
    tunnel = open_tunnel(settings, home, node_id=identity.node_id, leases=users.leases)
    borrower = Borrower(tunnel.identity if tunnel is not None else None)
    supervisor = RunnerSupervisor(
        home=home,
        fences=FenceStore(home.fence_path, clock),
        models=models,
        users=users,
        devices=devices,
        clock=clock,
        runner_listen=settings.runner_listen,
        runner_advertise=settings.runner_advertise,
        lender=lender,
        borrower=borrower,
        origins=origins,
        states=states,
        peers=peers,
    )
    speeds = DecodeSpeeds(notes, clock, lent=users.leases.device_ids)
    process_memory = ProcessMemory(notes, lent=users.leases.device_ids)
    shares = CoreShares(clock, cores=computing_cores())
    faults = NodeFaults(
        users=users,
        devices=devices,
        directories={"models": settings.models_directory, "home": home.directory},
        is_production=settings.production,
    )
    servicer = HostServicer(supervisor, Measurements(models, borrower, devices, origins), tunnel, faults, states, peers)
    revocations = Revocations(home.directory / "removed-nodes.json")
    server = _bind(settings, servicer, ModelStoreServicer(store, pulls.pull), revocations)

    def shown_devices() -> list[cluster_pb2.Device]:
        return process_memory.mark(speeds.mark(devices.devices(), devices.engine_build), devices.engine_build)

    metrics_address = _serve_metrics(settings, shown_devices, store, states)
    facts = discovery_pb2.HostFacts(
        address=settings.node_advertise or server.address,
        metrics_address=metrics_address,
        rpc_enabled=tunnel is not None,
        tunnel_certificate=tunnel.identity.certificate if tunnel is not None else b"",
    )
    changes = Changes()

    snapshot = _snapshot(facts, lambda: (devices.engine_build, shown_devices()), models, supervisor, states)
    await supervisor.adopt()
    finding = _begin_finding(devices)
    background = [
        models.watch(),
        home.watch_logs(),
        supervisor.watch_removals(revocations),
        devices.watch(),
        watch_unused(store, clock),
        states.run(),
        *([_keep_zygote(home, devices, finding)] if settings.zygote else []),
        shares.watch(supervisor.changes, supervisor.records),
        _learn(speeds, supervisor, devices, supervisor.changes, WINDOWS_INTERVAL_S),
        _learn(process_memory, supervisor, devices, devices.changes, FIGURES_INTERVAL_S),
    ]
    tasks = [finding, *(asyncio.create_task(work) for work in background)]

    async def serve_known() -> None:
        await _until(_first_listing(devices, finding), _first_scan(models), unless=tasks)
        await server.start()
        registrations = Registrations(settings.discovery_address, identity, snapshot, changes, revocations)
        shown = {"node": identity.node_id, "address": server.address, "metrics_address": metrics_address}
        more = [
            *([tunnel.run()] if tunnel is not None else []),
            *(_forward(source.changes, changes) for source in (devices, models, supervisor, lender)),
            registrations.run(),
            _say_ready(server, finding, **shown),
        ]
        tasks.extend(asyncio.create_task(work) for work in more)
        await _until(stop.wait(), unless=tasks)

    try:
        await _leaving_runners_if_it_fails(serve_known())
    finally:
        await pulls.close()
        await supervisor.close()
        await peers.close()
        await _end(tasks)
        await server.stop(STOP_GRACE_S)


async def _leaving_runners_if_it_fails(serving: Coroutine[Any, Any, None]) -> None:
    """End this process at once if `serving` fails, as a kill would: its runners are left to the next host.

    Raises:
        StartupError: a newer host of this node took its place, whose runners are others.
    """
    try:
        await serving
    except PlacementMismatch as error:
        raise StartupError(error.message) from error
    except Exception as error:
        log.exception("host.failed", text=f"{error}; its runners go on, the next host adopts them")
        drain_logs()
        os._exit(EXIT_FAILED)


def _open_models(settings: HostSettings, home: HostHome) -> tuple[NodeModels, Store]:
    settings.models_directory.mkdir(parents=True, exist_ok=True)
    models = NodeModels(settings.models_directory, home.cache_directory)
    store = Store(models, blob_bytes_max=settings.blob_max_bytes, prunes=not settings.noprune)
    tidy_up(store.blobs)
    return models, store


def _bind(
    settings: HostSettings, host: HostServicer, store: ModelStoreServicer, revocations: Revocations
) -> GrpcServer:
    def register(server: aio.Server) -> None:
        host_pb2_grpc.add_HostServicer_to_server(host, server)
        store_pb2_grpc.add_ModelStoreServicer_to_server(store, server)

    return bind_server(
        settings.node_listen,
        register=register,
        services=[HOST_SERVICE, store_pb2.DESCRIPTOR.services_by_name["ModelStore"].full_name],
        plaintext=settings.plaintext,
        revocations=revocations,
    )


def _serve_metrics(
    settings: HostSettings, devices: Callable[[], list[cluster_pb2.Device]], store: Store, states: NodeStates
) -> str:
    metrics.DEVICES.read_from(lambda: (DeviceRow((device.id,), device) for device in devices()))
    metrics.STORE_GAUGES.read_from(store.samples)
    metrics.STATE_GAUGES.read_from(states.samples)
    return serve_metrics(settings.metrics_listen, service="host", plaintext=settings.plaintext)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(*awaited: Coroutine[Any, Any, Any], unless: Iterable[asyncio.Task[None]]) -> None:
    """Wait for all of them, or raise what ended one of the other tasks before.

    Raises:
        PlacementMismatch: a newer host of this node took its place.
    """
    missing: set[asyncio.Task[Any]] = {asyncio.create_task(one) for one in awaited}
    others = set(unless)
    try:
        while missing:
            done, _ = await asyncio.wait(missing | others, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            missing, others = missing - done, others - done
    finally:
        for task in missing:
            task.cancel()


def _snapshot(
    facts: discovery_pb2.HostFacts,
    devices: Callable[[], tuple[str, list[cluster_pb2.Device]]],
    models: NodeModels,
    supervisor: RunnerSupervisor,
    states: NodeStates,
) -> Callable[[], Sections]:
    """Make the reader of what there is to report. The list of models is made anew only when it changed.

    `devices` has the engine build, too.
    """
    listed = discovery_pb2.ModelList()
    listed_version = -1

    def read() -> Sections:
        nonlocal listed, listed_version
        if models.changes.version != listed_version:
            listed_version = models.changes.version
            listed = discovery_pb2.ModelList(models=models.models())
        current = discovery_pb2.HostFacts()
        current.CopyFrom(facts)
        current.engine_build, found = devices()
        runners = supervisor.records()
        for runner in runners:
            runner.status.ClearField("decode_window")  # it was for this host
        current.state_tiers.extend(states.sizes())
        current.models_free_bytes, current.models_total_bytes = models.free_bytes, models.total_bytes
        return Sections(
            facts=current,
            devices=discovery_pb2.DeviceList(devices=found),
            models=listed,
            runners=discovery_pb2.RunnerList(runners=runners),
        )

    return read


def _warn_of_limits() -> None:
    """Log limits that the environment sets: the probe misses devices that the user hides from the engine."""
    limits = limits_set(os.environ)
    if limits:
        log.warning("devices.limited_by_environment", **limits)


def _begin_finding(devices: Devices) -> asyncio.Task[None]:
    devices.show_ram()
    return asyncio.create_task(devices.start())


async def _keep_zygote(home: HostHome, devices: Devices, finding: asyncio.Task[None]) -> None:
    """Have a zygote once the devices are known, and another one when the engine or a driver is another; for ever."""
    await asyncio.wait({finding})
    zygote = Zygote(home.logs_directory / "zygote.log")
    use_zygote(zygote)
    living = asyncio.create_task(zygote.run())
    known: dict[str, str] = {}
    seen = 0
    try:
        while True:
            found = {"engine": devices.engine_build} | {device.id: device.driver for device in devices.devices()}
            if any(known.get(name, version) != version for name, version in found.items()):
                zygote.renew()
            known |= found
            seen = await devices.changes.beyond(seen)
    finally:
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)


async def _first_listing(devices: Devices, finding: asyncio.Task[None]) -> None:
    """Until the devices are known and tested, but not for an engine that hangs."""
    await asyncio.wait({finding}, timeout=FIRST_LISTING_S)
    if devices.is_probing:
        log.warning("devices.listing_continues", after_s=FIRST_LISTING_S)
    else:
        await finding


async def _say_ready(server: GrpcServer, finding: asyncio.Task[None], **fields: str) -> None:
    """Orchestrators may ask for the health of the process, or for that of its service, which knows its devices."""
    if not finding.done():
        await server.set_serving(False, service=HOST_SERVICE)
        log.info("host.serves", **fields)
    await asyncio.shield(finding)
    await server.set_serving(True, service=HOST_SERVICE)
    log.info("host.ready", **fields)


async def _first_scan(models: NodeModels) -> None:
    try:
        async with asyncio.timeout(FIRST_SCAN_S):
            await models.scanned.wait()
    except TimeoutError:
        log.info("models.scan_continues", after_s=FIRST_SCAN_S)


async def _learn(
    learner: DecodeSpeeds | ProcessMemory, runners: RunnerSupervisor, devices: Devices, news: Changes, interval_s: float
) -> None:
    while True:
        seen = news.version
        learner.look(runners.records(), devices.devices(), devices.engine_build)
        await asyncio.sleep(interval_s)
        await news.beyond(seen)


async def _forward(source: Changes, target: Changes) -> None:
    seen = source.version
    while True:
        seen = await source.beyond(seen)
        target.notify()


def _wanted_id(settings: HostSettings) -> str:
    """Return the configured id of the node, or the one that its certificate names.

    Raises:
        StartupError: the certificate is not that of this node.
    """
    identity = own_identity()
    if identity is None:
        return settings.node_id
    name = identity.material().facts.name
    if name.role is not Role.NODE or settings.node_id not in ("", name.id):
        raise StartupError(
            f"PUNA_TRUST has the certificate of {name}; a host needs that of node/{settings.node_id or 'ID'}"
        )
    return name.id


def _check_runner_listener(settings: HostSettings) -> None:
    listen = settings.runner_listen
    if listen == UNIX_PREFIX:
        return
    if listen.startswith(UNIX_PREFIX) or not listen.endswith(":0"):
        raise StartupError(
            'PUNA_RUNNER_LISTEN must be "unix:" or a host with port 0, because each runner needs its own'
        )
    if not settings.plaintext and own_identity() is None:
        check_consent(listen)

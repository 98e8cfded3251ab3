"""Puts the scheduler together and runs it, with the operator's file of constraints."""

import asyncio
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from common.clock import Clock, SystemClock
from common.errors import InvalidRequest, StartupError
from common.grpc.server import GrpcServer, bind_server
from common.ids import new_incarnation
from common.metrics_page import serve_metrics
from common.model_details import KeptDetails
from common.network import reachable
from common.redis.client import VulnerableServerError
from common.telemetry.collector import Collector
from common.telemetry.logs import get_logger
from discovery.client import watch_changes
from protos import scheduler_pb2, scheduler_pb2_grpc
from runner.host.client import HostClient
from scheduler import metrics
from scheduler.callers import Callers
from scheduler.core.draining import replicas_on_drained
from scheduler.core.loading.crashes import shown_rows
from scheduler.core.state.events import InventoryLost
from scheduler.core.state_machine import SchedulerCore
from scheduler.core.values.constraint_fields import parse_constraints
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.routing_table import with_tag
from scheduler.gauges import promised_bytes, ranked_speeds, reserved_bytes, samples
from scheduler.leadership import Leadership
from scheduler.loop import CoreLoop
from scheduler.performer import Performer
from scheduler.redis_store import RedisStore, StoreUnavailableError
from scheduler.removals import Removals
from scheduler.routes import RouteBoard
from scheduler.servicer import SchedulerServicer
from scheduler.settings import SchedulerSettings
from scheduler.writer import Writer

FILE_BYTES_MAX = 4 * 1024 * 1024
log = get_logger()
# Watch streams never end by themselves: at a stop they are cut after this time, and gateways dial again.
STOP_GRACE_S = 0.2
# The channel to a host that left is closed after so long; until then its calls may still come to their end.
FORGET_HOST_S = 60.0


class SchedulerApp:
    """Everything of one scheduler process."""

    def __init__(self, settings: SchedulerSettings, clock: Clock, collector: Collector | None = None) -> None:
        """Binds the listener, connects to nothing yet.

        Raises:
            StartupError: an address is taken, or a setting is of no use.
        """
        self._settings = settings
        self._clock = clock
        self._details = KeptDetails()
        board = self.board = RouteBoard(clock, self._details)
        callers = Callers()
        constraints = read_constraints_file(settings.placements)
        self.core = SchedulerCore(settings.policy(), lambda: str(uuid.uuid4()), constraints)
        self._loop = CoreLoop(self.core, clock, board, collector)
        metrics.INVENTORY_GAUGES.read_from(self._loop.inventory_age)
        metrics.STATE_GAUGES.read_from(lambda: samples(self.core.state, clock.now_s()))
        board.read_promises = lambda: (promised_bytes(self.core.state), reserved_bytes(self.core.state))
        board.read_speeds = lambda: ranked_speeds(self.core.state)
        board.read_drains = lambda: replicas_on_drained(self.core.state)
        board.read_crash_rows = lambda: shown_rows(self.core.state, clock.now_s())
        self._store = RedisStore(settings.redis_url, clock, any_version=settings.redis_any_version)
        self._server: GrpcServer = bind_server(
            settings.scheduler_listen,
            register=lambda _: None,  # below: what the servicer needs knows the address
            services=[scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].full_name],
            plaintext=settings.plaintext,
        )
        self.address = self._server.address
        self._hosts = HostClient("node")
        self._leadership = Leadership(
            self._store,
            clock,
            f"{new_incarnation()}@{self.address}",
            on_change=self._loop.post_soon,
            on_end=self._stop_commanding,
        )
        self._removals = Removals(self._store, self._leadership, board, clock, discovery=settings.discovery_address)
        servicer = SchedulerServicer(self._loop, callers, board, self._removals)
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(servicer, self._server.server)
        self._writer = Writer(self._loop, self._store, self._leadership.check)
        self._performer = Performer(
            loop=self._loop,
            hosts=self._hosts,
            writer=self._writer,
            leadership=self._leadership,
            callers=callers,
            board=board,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. A standby serves too: its routes are as good as the leader's.

        Raises:
            StartupError: Redis has a known hole, and other machines can reach it.
        """
        await self._check_redis()
        core = asyncio.create_task(self._loop.run(self._performer.perform, self._leadership), name="core")
        tasks = [
            core,
            asyncio.create_task(self._writer.run(), name="writes"),
            asyncio.create_task(self._leadership.run(), name="leadership"),
            asyncio.create_task(self._watch_inventory(), name="inventory"),
            asyncio.create_task(self._removals.run(), name="removed nodes"),
        ]
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await self._server.start()
            log.info("scheduler.ready", address=self.address, leader_id=self._leadership.leader_id)
            done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises where one of ours ended by itself: a bug, which ends the process
        finally:
            await self._leadership.resign()
            await self._server.stop(STOP_GRACE_S)
            for task in [stopped, *tasks]:
                task.cancel()
            await asyncio.gather(stopped, *tasks, return_exceptions=True)
            await self._performer.close()
            await self._hosts.close()
            await self._store.close()

    async def _check_redis(self) -> None:
        """Refuse to start with a server that has a known hole; one that does not answer yet is checked later."""
        try:
            await self._store.connect()
        except VulnerableServerError as error:
            await self._store.close()
            raise StartupError(f"PUNA_REDIS_URL: {error}") from error
        except StoreUnavailableError:
            pass  # leadership says so, again and again

    async def _watch_inventory(self) -> None:
        seen_at_s: dict[str, float] = {}
        inventories = watch_changes(
            self._settings.discovery_address, on_connection=self._on_connection, details=self._details
        )
        async for inventory in inventories:
            address = reachable(inventory.metrics_address, self._settings.discovery_address)
            await self._loop.post_inventory(replace(inventory, metrics_address=address))
            now_s = self._clock.now_s()
            seen_at_s |= {node.address: now_s for node in inventory.nodes}
            for address in [one for one, at_s in seen_at_s.items() if now_s >= at_s + FORGET_HOST_S]:
                del seen_at_s[address]
                await self._hosts.forget(address)

    def _stop_commanding(self) -> None:
        self._performer.stop_commanding()

    def _on_connection(self, connected: bool) -> None:
        metrics.INVENTORY_UP.set(connected)
        if not connected:
            self._loop.post_soon(InventoryLost())


async def serve(settings: SchedulerSettings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set.

    Raises:
        StartupError: an address is taken, or a setting is of no use.
    """
    clock = SystemClock()
    app = SchedulerApp(settings, clock, Collector(clock.now_s()))
    metrics_address = serve_metrics(settings.metrics_listen, service="scheduler", plaintext=settings.plaintext)
    app.board.metrics_address = metrics_address
    log.info("scheduler.metrics", metrics_address=metrics_address)
    await app.run(stop)


def read_constraints_file(path: str) -> Mapping[str, Constraints]:
    """Read the constraints in a file, by model name with tag; an empty path means that there is none.

    The file is TOML, with one table per model:

        [models."llama3:8b"]
        replicas_min = 1
        devices = ["node-a/GPU-5e1f"]

    Raises:
        StartupError: it cannot be read, or what it says is of no use; the text names the model and the constraint.
    """
    if not path:
        return {}
    try:
        data = Path(path).read_bytes()
        if len(data) > FILE_BYTES_MAX:
            raise StartupError(f"PUNA_PLACEMENTS: {path} has more than {FILE_BYTES_MAX} bytes")
        document = tomllib.loads(data.decode())
    except OSError as error:
        raise StartupError(f"PUNA_PLACEMENTS: {path}: {error.strerror or error}") from error
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise StartupError(f"PUNA_PLACEMENTS: {path}: {error}") from error
    tables = document.get("models", {})
    strange = [name for name in document if name != "models"]
    if strange or not isinstance(tables, dict):
        raise StartupError(f'PUNA_PLACEMENTS: {path}: only tables [models."name"] are known')
    return {with_tag(name): _parse_table(path, name, table) for name, table in tables.items()}


def _parse_table(path: str, name: str, table: object) -> Constraints:
    if not isinstance(table, dict):
        raise StartupError(f'PUNA_PLACEMENTS: {path}: models."{name}" must be a table')
    try:
        return parse_constraints(table)
    except InvalidRequest as error:
        raise StartupError(f'PUNA_PLACEMENTS: {path}: models."{name}": {error.message}') from error

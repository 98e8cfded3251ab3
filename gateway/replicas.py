"""Connections to the replicas of the routes, each with its live load."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from common.errors import PunaError
from common.logs import get_logger
from gateway.converters import replica_state
from gateway.core import replica_load
from gateway.core.replica_choice import Candidate
from gateway.core.replica_load import ReplicaLoad
from gateway.core.routes import ReplicaInfo, ReplicaState, RouteInfo
from gateway.ports import ConnectRunner, Runner
from protos import cluster_pb2

log = get_logger()

RECONNECT_S_MIN = 0.2
RECONNECT_S_MAX = 5.0


@dataclass(slots=True, eq=False)
class Connection:
    """One replica: its client, and how busy it is."""

    info: ReplicaInfo
    runner: Runner
    load: ReplicaLoad
    watch: asyncio.Task[None] | None = None
    retired: bool = False  # no longer in the routes; closed with its last request


class ReplicaPool:
    """A connection for every replica of the routes. Running answers outlive the route of their replica."""

    def __init__(self, *, connect: ConnectRunner, on_change: Callable[[], None]) -> None:
        self._connect = connect
        self._on_change = on_change
        self._connections: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def sync(self, routes: Iterable[RouteInfo]) -> None:
        """Connect to replicas that are new, let go of those that left."""
        wanted = {replica.key: replica for route in routes for replica in route.replicas if replica.address}
        for key in self._connections.keys() - wanted.keys():
            connection = self._connections.pop(key)
            connection.retired = True
            self._close_if_unused(connection)
        for key, info in wanted.items():
            if known := self._connections.get(key):
                known.info = info
            else:
                self._connections[key] = self._open(info)

    def candidates(self, route: RouteInfo) -> list[Candidate]:
        """The replicas of a route that are ready and reachable, busy ones included."""
        found = []
        for replica in route.replicas:
            connection = self._connections.get(replica.key)
            # Drain and hang are the scheduler's to say; everything else the runner itself knows better and sooner.
            if connection is None or replica.state in (ReplicaState.DRAINING, ReplicaState.BROKEN):
                continue
            load = connection.load
            if load.state is not ReplicaState.READY or not load.reachable:
                continue
            found.append(
                Candidate(
                    key=replica.key,
                    context_tokens=connection.info.context_tokens,
                    slots_total=load.slots_total,
                    slots_free=load.slots_free,
                    work=load.work,
                    layers_on_devices=connection.info.layers_on_devices,
                    layers_total=route.model.layer_count + 1,
                )
            )
        return found

    def load_of(self, key: str) -> ReplicaLoad | None:
        """The live load of a replica, if it is connected."""
        connection = self._connections.get(key)
        return connection.load if connection else None

    def take(self, key: str) -> Connection:
        """Count a request in; `give_back` must follow."""
        connection = self._connections[key]
        connection.load = replica_load.started(connection.load)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Count a request out."""
        connection.load = replica_load.ended(connection.load)
        self._close_if_unused(connection)
        self._on_change()

    def mark_full(self, connection: Connection) -> None:
        """The replica refused a request for lack of room."""
        connection.load = replica_load.saturated(connection.load)

    def mark_lost(self, connection: Connection) -> None:
        """A call could not reach the replica, or broke; nothing goes there until it answers a new load watch.

        The old watch may be alive and silent: an idle replica has nothing to report.
        """
        connection.load = replica_load.unreachable(connection.load)
        if connection.watch is not None and not connection.retired:
            connection.watch.cancel()
            self._watch_anew(connection)

    async def close(self) -> None:
        """Close every connection; answers that still run end."""
        for connection in self._connections.values():
            self._start_closing(connection)
        self._connections.clear()
        while self._closing:
            await asyncio.gather(*self._closing)

    def _open(self, info: ReplicaInfo) -> Connection:
        load = ReplicaLoad(
            state=info.state, slots_total=info.slots_total, slots_busy=info.slots_busy, queued=info.queued
        )
        connection = Connection(info=info, runner=self._connect(info.address), load=load)
        self._watch_anew(connection)
        return connection

    def _watch_anew(self, connection: Connection) -> None:
        connection.watch = asyncio.create_task(self._watch(connection), name=f"load {connection.info.key}")

    async def _watch(self, connection: Connection) -> None:
        delay_s = RECONNECT_S_MIN
        while True:
            try:
                async for status in connection.runner.watch_load():
                    delay_s = RECONNECT_S_MIN
                    self._hear(connection, status)
            except PunaError as error:
                log.debug("replica.unreachable", replica=connection.info.key, reason=error.reason, text=error.message)
            connection.load = replica_load.unreachable(connection.load)
            self._on_change()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_S_MAX)

    def _hear(self, connection: Connection, status: cluster_pb2.RunnerStatus) -> None:
        connection.load = replica_load.reported(
            connection.load,
            state=replica_state(status.state),
            slots_total=status.slots_total or connection.info.slots_total,
            slots_busy=status.slots_busy,
            queued=status.queued,
        )
        self._on_change()

    def _close_if_unused(self, connection: Connection) -> None:
        if connection.retired and connection.load.in_flight == 0:
            self._start_closing(connection)

    def _start_closing(self, connection: Connection) -> None:
        task = asyncio.create_task(_close(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(connection: Connection) -> None:
    if connection.watch is not None:
        connection.watch.cancel()
        await asyncio.gather(connection.watch, return_exceptions=True)
    await connection.runner.close()

"""Connections to the replicas of the routes, each with its live load and the calls that stream on it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from common.clock import Clock, SystemClock
from common.errors import PunaError, RunnerLost
from common.grpc.ranges import find_out_of_range
from common.grpc.watch import Backoff, watch
from common.spec import codecs
from common.spec.pace import UNKNOWN_PACE, RunnerPace
from common.telemetry.logs import get_logger
from common.telemetry.skipped_rows import SkippedRows
from common.trust.roles import runner_peer
from gateway import metrics
from gateway.converters.routes import holdings_of, replica_state
from gateway.core.dispatch import replica_load
from gateway.core.dispatch.prompt_prefixes import NOTHING_HELD, Holdings, PromptPrefixes
from gateway.core.dispatch.replica_choice import ReplicaCandidate
from gateway.core.dispatch.replica_load import ReplicaLoad
from gateway.core.dispatch.resume import Suspicion
from gateway.core.models.routes import ReplicaInfo, ReplicaState, RouteInfo
from gateway.replicas.poison import PoisonRequests
from gateway.replicas.runner_calls import OpenCalls, RunnerSilent
from protos import cluster_pb2
from runner.client import RunnerClient

log = get_logger()

BACKOFF = Backoff(first_s=0.2, max_s=5.0)
# A runner reports every second. One that has been silent for so long may be stopped, so nothing new goes there.
REPORT_AGE_S_MAX = 2.0
# Interval of looking at ages of reports and silences of calls.
LOOK_S = 0.5
# A runner that dies ends its calls first, and changes its status a moment later.
DYING_S_MAX = 1.0
# A replica that stalled or broke is left alone for so long, twice as long each time.
BAN_S_MIN = 5.0
BAN_S_MAX = 60.0


# Nodes remembered for the states that they keep of a model which no longer runs there.
LEFT_MAX = 64
# Time for a silent replica to answer a question.
ASKED_S = 1.0


@dataclass(slots=True, eq=False)
class Connection:
    """One replica: its client, how busy it is, and what streams."""

    info: ReplicaInfo
    model_name: str
    runner: RunnerClient
    load: ReplicaLoad
    reported_s: float
    watch: asyncio.Task[None] | None = None
    retired: bool = False  # no longer in the routes; closed with its last request
    streams: OpenCalls = field(default_factory=OpenCalls)
    suspect: Suspicion | None = None  # of the request there that may have crashed a runner; see `core.dispatch.resume`
    suspect_crashed_s: float | None = None
    banned_until_s: float = 0.0
    ban_s: float = BAN_S_MIN
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    holdings: Holdings = NOTHING_HELD
    pace: RunnerPace = UNKNOWN_PACE
    question: asyncio.Task[None] | None = None  # whether it lives, while it is silent

    @property
    def is_draining(self) -> bool:
        """Return True if its end is wanted, so that no request is blamed for it."""
        return ReplicaState.DRAINING in (self.info.state, self.load.state)

    @property
    def is_lost(self) -> bool:
        """True if it has said that it is broken, or says nothing any more."""
        return self.load.state is ReplicaState.BROKEN or not self.load.reachable


class ReplicaPool:
    """A connection for every replica of the routes. Running answers outlive the route of their replica."""

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        clock: Clock | None = None,
        is_current: Callable[[], bool] = lambda: True,
        connect: Callable[[str, str], RunnerClient] = RunnerClient,
    ) -> None:
        """`is_current` returns False while no scheduler says what changes; `connect` opens the client of a replica."""
        self._on_change = on_change
        self._is_current = is_current
        self._connect = connect
        self._clock = clock or SystemClock()
        self._connections: dict[str, Connection] = {}
        self._skipped = SkippedRows(metrics.SKIPPED_ROWS)
        self._retired: dict[Connection, None] = {}  # that calls still stream on, oldest first
        self._closing: set[asyncio.Task[None]] = set()
        # What nodes keep whose replicas of a model have ended, by model and node; the oldest first.
        self._left: dict[tuple[str, str], Holdings] = {}
        self.poisoned = PoisonRequests(self._clock)

    def sync(self, routes: Iterable[RouteInfo]) -> None:
        """Connect to replicas that are new, let go of those that left."""
        wanted = {
            replica.key: (route.model.name, replica)
            for route in routes
            for replica in route.replicas
            if replica.address
        }
        for key in [key for key in self._connections if key not in wanted]:
            connection = self._connections.pop(key)
            connection.retired = True
            self._retired[connection] = None
            self._note_left(connection)
            self._close_if_unused(connection)
        for key, (model_name, info) in wanted.items():
            if known := self._connections.get(key):
                known.info = info
                self._end_if_hung(known)
            else:
                self._connections[key] = self._open(info, model_name)

    def end_on(self, removed_nodes: frozenset[str]) -> None:
        """End the calls of replicas on nodes that were removed from the cluster; other replicas take them over."""
        for connection in self._retired if removed_nodes else ():
            if connection.info.node_id in removed_nodes:
                connection.streams.end_all(RunnerLost("the node of the model runner was removed"))

    def candidates(self, route: RouteInfo) -> list[ReplicaCandidate]:
        """List the replicas of a route that are ready and reachable, busy ones included."""
        found = []
        now_s = self._clock.now_s()
        banned = self._banned(route, now_s)
        for replica in route.replicas:
            connection = self._connections.get(replica.key)
            # Drain and hang are the scheduler's to say; everything else the runner itself knows better and sooner.
            if connection is None or replica.state in (ReplicaState.DRAINING, ReplicaState.BROKEN):
                continue
            load = connection.load
            if load.state is not ReplicaState.READY or not load.reachable or replica.key in banned:
                continue
            is_silent = self._is_silent(connection) and len(route.replicas) > 1
            found.append(
                ReplicaCandidate(
                    key=replica.key,
                    context_tokens=connection.info.context_tokens,
                    slots_total=load.slots_total,
                    slots_free=0 if is_silent else load.slots_free,
                    slots_open=() if is_silent else load.slots_open,
                    work=load.work,
                    holdings=connection.holdings,
                    pace=connection.pace,
                    has_suspect=connection.suspect is not None,
                    layers_on_devices=connection.info.layers_on_devices,
                    layers_total=route.model.layer_count + 1,
                )
            )
        return found

    def connection(self, key: str) -> Connection:
        """Return the connection of a candidate."""
        return self._connections[key]

    def load_of(self, key: str) -> ReplicaLoad | None:
        """Return the live load of a replica, if it is connected."""
        connection = self._connections.get(key)
        return connection.load if connection else None

    def state_of(self, replica: ReplicaInfo) -> tuple[str, str]:
        """Return the state of a replica, and the reason of one that does not serve."""
        load = self.load_of(replica.key)
        state = load.state if load else replica.state
        if state is ReplicaState.LOADING and not self._is_current() and not (load and load.reachable):
            return "unknown", "the scheduler cannot be reached, and the runner does not answer: the load may have ended"
        return str(state), replica.reason

    def report_age_s(self, key: str) -> float | None:
        """Return the seconds since the runner's last report; None: it is not connected, or cannot be reached."""
        connection = self._connections.get(key)
        if connection is None or not connection.load.reachable:
            return None
        return self._clock.now_s() - connection.reported_s

    def _banned(self, route: RouteInfo, now_s: float) -> set[str]:
        """List replicas that get no requests for a while, at most half of a model's."""
        known = [self._connections[one.key] for one in route.replicas if one.key in self._connections]
        banned = sorted((one for one in known if one.banned_until_s > now_s), key=lambda one: -one.banned_until_s)
        return {one.info.key for one in banned[: len(known) // 2]}

    def take(self, key: str, suspicion: Suspicion | None = None) -> Connection:
        """Count a request in; `give_back` must follow."""
        connection = self._connections[key]
        connection.load = replica_load.started(connection.load)
        connection.suspect = suspicion or connection.suspect
        return connection

    def node_with_state(self, connection: Connection, prefixes: PromptPrefixes) -> str:
        """Return the node that keeps a state of more of a prompt than the replica's own; empty: none does."""
        model_name, own = connection.model_name, connection.info.node_id
        known = [(one.info.node_id, one.holdings) for one in self._connections.values() if one.model_name == model_name]
        known += [(node_id, held) for (name, node_id), held in self._left.items() if name == model_name]
        most, best = connection.holdings.most_bytes(prefixes), ""
        for node_id, holdings in known:
            found = holdings.most_bytes(prefixes) if node_id != own else 0
            if found > most:
                most, best = found, node_id
        return best

    def _note_left(self, connection: Connection) -> None:
        """Remember what the node of a replica that ends keeps of its conversations."""
        place = connection.model_name, connection.info.node_id
        self._left.pop(place, None)
        self._left[place] = connection.holdings
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def now_s(self) -> float:
        """Return the time of the pool's clock."""
        return self._clock.now_s()

    def clear_suspect(self, connection: Connection, suspicion: Suspicion) -> None:
        """Note that a suspect there is harmless, or gone."""
        if connection.suspect is suspicion:
            connection.suspect = None
            suspicion.is_computed = False
            self._on_change()

    async def is_dying(self, connection: Connection) -> bool:
        """Return True if a replica that failed a call is lost as a whole: its report or silence shows it in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DYING_S_MAX):
                while not connection.is_lost:
                    connection.changed.clear()
                    await connection.changed.wait()
        return connection.is_lost

    async def watch_silence(self) -> None:
        """End calls of runners that hang, and send nothing to those that do not report; until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = asyncio.get_running_loop().time()
            for connection in [*self._connections.values(), *self._retired]:
                self._end_if_hung(connection)
                if connection.streams.calls and connection.question is None and self._is_silent(connection):
                    connection.question = asyncio.create_task(self._ask(connection), name="silent replica")
                if connection.streams.end_stalled(now_s):
                    log.warning("replica.stalled", replica=connection.info.key)
            self._on_change()

    def give_back(self, connection: Connection, suspicion: Suspicion | None = None) -> None:
        """Count a request out."""
        if suspicion is not None:
            self.clear_suspect(connection, suspicion)
        connection.load = replica_load.ended(connection.load)
        self._close_if_unused(connection)
        self._on_change()

    def mark_full(self, connection: Connection) -> None:
        """Note that the replica refused a request for lack of room."""
        connection.load = replica_load.saturated(connection.load)

    def _end_if_hung(self, connection: Connection) -> None:
        """End the calls of a runner that is silent towards its host and towards this gateway."""
        if connection.info.state is ReplicaState.BROKEN and self._is_silent(connection):
            connection.streams.end_all(RunnerLost("the model runner does not answer"))

    async def _ask(self, connection: Connection) -> None:
        """Ask a silent replica itself. While another one could take its answers, they need not wait for more proof."""
        try:
            async with (
                asyncio.timeout(ASKED_S),
                contextlib.aclosing(connection.runner.watch_load(held_prefixes=True)) as statuses,
            ):
                self._hear(connection, await anext(statuses))
        except (TimeoutError, PunaError, StopAsyncIteration) as error:
            log.warning("replica.silent", replica=connection.info.key, error=type(error).__name__)
            if self._has_other(connection):
                connection.streams.end_all(RunnerSilent("the model runner does not answer"))
        finally:
            connection.question = None

    def _has_other(self, connection: Connection) -> bool:
        return any(
            one.model_name == connection.model_name
            and one is not connection
            and one.load.state is ReplicaState.READY
            and one.load.reachable
            and not self._is_silent(one)
            for one in self._connections.values()
        )

    def _is_silent(self, connection: Connection) -> bool:
        return self._clock.now_s() - connection.reported_s > REPORT_AGE_S_MAX

    def mark_lost(self, connection: Connection) -> None:
        """Note that a call could not reach the replica, or broke: no requests until it answers a new load watch.

        The old watch may be alive and silent: an idle replica has nothing to report.
        """
        connection.load = replica_load.unreachable(connection.load)
        connection.banned_until_s = self._clock.now_s() + connection.ban_s
        connection.ban_s = min(connection.ban_s * 2, BAN_S_MAX)
        connection.changed.set()
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

    def _open(self, info: ReplicaInfo, model_name: str) -> Connection:
        load = ReplicaLoad(
            state=info.state, slots_total=info.slots_total, slots_busy=info.slots_busy, queued=info.queued
        )
        connection = Connection(
            info=info,
            model_name=model_name,
            runner=self._connect(info.address, runner_peer(info.node_id, info.placement_id)),
            load=load,
            reported_s=self._clock.now_s(),
        )
        self._watch_anew(connection)
        return connection

    def _watch_anew(self, connection: Connection) -> None:
        connection.watch = asyncio.create_task(self._watch(connection), name=f"load {connection.info.key}")

    async def _watch(self, connection: Connection) -> None:
        def lose(error: PunaError | None, _failures: int) -> None:
            if error is not None:
                log.debug("replica.unreachable", replica=connection.info.key, reason=error.reason, text=error.message)
            connection.load = replica_load.unreachable(connection.load)
            connection.changed.set()
            self._on_change()

        open_stream = partial(connection.runner.watch_load, held_prefixes=True)
        async for status in watch(open_stream, on_lost=lose, backoff=BACKOFF):
            self._hear(connection, status)

    def _hear(self, connection: Connection, status: cluster_pb2.RunnerStatus) -> None:
        # A runner reads hostile files, and a figure that is none would spoil the choice among all replicas.
        if (nonsense := find_out_of_range(status)) is not None:
            self._skipped.note("statuses", {connection.info.key: str(nonsense)}, runner=connection.info.address)
            return
        connection.load = replica_load.reported(
            connection.load,
            state=replica_state(status.state),
            slots_total=status.slots_total or connection.info.slots_total,
            slots_busy=status.slots_busy,
            queued=status.queued,
            open_slots=tuple(status.open_slots),
            load_fraction=status.load_fraction,
        )
        connection.reported_s = self._clock.now_s()
        connection.pace = codecs.PACE.from_proto(status.pace)
        connection.runner.multiplexes = status.multiplexes
        if status.HasField("held_prefixes"):
            connection.holdings = holdings_of(status.held_prefixes)
        connection.changed.set()
        if connection.load.state is ReplicaState.BROKEN:
            connection.streams.end_all(RunnerLost("the model runner failed"))
        self._on_change()

    def _close_if_unused(self, connection: Connection) -> None:
        if connection.retired and connection.load.in_flight == 0:
            self._retired.pop(connection, None)
            self._start_closing(connection)

    def _start_closing(self, connection: Connection) -> None:
        task = asyncio.create_task(_close(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(connection: Connection) -> None:
    for task in (connection.watch, connection.question):
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await connection.runner.close()

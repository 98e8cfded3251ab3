"""Schedulers: everything of the product but gRPC and Redis, with a store that obeys the same rules."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from common.clock import MS_PER_S
from common.closing import closing
from common.errors import ModelUnavailable, PunaError, StaleFence
from common.grpc.watch import watch
from common.model_details import KeptDetails
from common.seen_inventory import Laid
from protos import discovery_pb2, runner_pb2, scheduler_pb2
from scheduler.callers import Callers
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.effects import AskRunner, Effect, RemoveDesired, SaveDesired, SaveMargins, Write
from scheduler.core.state.events import InventoryLost, RunnerAnswered
from scheduler.core.state_machine import SchedulerCore
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import RunnerView
from scheduler.leader_search import ELSEWHERE, LEADER_WAIT_S, LeaderSearch
from scheduler.leadership import Leadership
from scheduler.loop import CoreLoop
from scheduler.performer import ANSWER_S_MAX, Performer
from scheduler.redis_store import LeaderLease, StoreUnavailableError
from scheduler.routes import RouteBoard
from scheduler.servicer import SchedulerServicer
from scheduler.writer import Writer
from tests.simulation.cluster.discovery_process import CONTEXT, SimDiscovery
from tests.simulation.cluster.network import Network, Process
from tests.simulation.cluster.node import SimHost, SimHostClient
from tests.simulation.cluster.runner_process import RunnerProcess

LEASE_TTL_S = 5.0
COMMAND_TIMEOUT_S = 0.5
INFO = runner_pb2.GetInfoRequest()


class SimRedis(Process):
    """The state store: a lease with a fence, and records that only the newest fence may write."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, "redis", "redis")
        self.desired: dict[str, DesiredPlacement] = {}
        self.margins: Margins = NO_MARGINS
        self.fence = 0
        self.holder = ""
        self.until_s = 0.0

    def flush(self) -> None:
        """Lose everything."""
        self.desired.clear()
        self.margins, self.fence, self.holder = NO_MARGINS, 0, ""

    async def acquire(self, leader_id: str, high_water: int) -> LeaderLease:
        """Take or renew the lease, as the script of `scheduler/redis_store.py` does."""
        now_s = self.network.loop.time()
        if self.holder and now_s < self.until_s and self.holder != leader_id:
            return LeaderLease(is_mine=False, holder=self.holder, fence=0)
        if self.holder != leader_id or now_s >= self.until_s or high_water >= self.fence:
            self.fence = max(self.fence + 1, round(self.clock.wall_unix_s() * MS_PER_S), high_water + 1)
        self.holder, self.until_s = leader_id, now_s + LEASE_TTL_S
        return LeaderLease(is_mine=True, holder=leader_id, fence=self.fence)

    async def write(self, effect: Write) -> None:
        """Write a record, if the fence is current."""
        if effect.fence != self.fence:
            raise StaleFence(f"the state store is at fence {self.fence}, not {effect.fence}")
        match effect:
            case SaveDesired():
                self.desired[effect.record.placement_id] = effect.record
            case RemoveDesired():
                self.desired.pop(effect.placement_id, None)
            case SaveMargins():
                self.margins = self.margins.with_all(effect.margins)
            case _:
                raise AssertionError(f"no scenario writes {effect}")

    async def read(self) -> tuple[tuple[DesiredPlacement, ...], Margins]:
        """Return all records."""
        return tuple(self.desired.values()), self.margins


class _StoreClient:
    """As `scheduler.redis_store.RedisStore`, over the simulated network."""

    def __init__(self, caller: Process, find: Callable[[], SimRedis | None]) -> None:
        self._caller = caller
        self._find = find

    async def _ask(self, command: Callable[[SimRedis], Any]) -> Any:
        await self._caller.awake()
        redis = self._find()
        try:
            if redis is None:
                await asyncio.sleep(0.001)
                raise ModelUnavailable("Connection refused")
            answer = await self._caller.network.ask(
                self._caller, redis, lambda: command(redis), timeout_s=COMMAND_TIMEOUT_S
            )
        except ModelUnavailable as error:
            raise StoreUnavailableError(f"state store unreachable: {error.message}") from error
        await self._caller.awake()
        return answer

    async def acquire(self, leader_id: str, *, high_water: int) -> LeaderLease:
        """Take or renew the lease."""
        lease: LeaderLease = await self._ask(lambda redis: redis.acquire(leader_id, high_water))
        return lease

    async def release(self, leader_id: str) -> None:
        """Give nothing back: no scheduler of these scenarios ends in order."""

    async def load(self) -> tuple[DesiredPlacement, ...]:
        """Read every desired placement."""
        desired, _ = await self._ask(lambda redis: redis.read())
        return tuple(desired)

    async def load_margins(self) -> Margins:
        """Read what leaders have learned."""
        _, margins = await self._ask(lambda redis: redis.read())
        return margins  # type: ignore[no-any-return]  # of `read`

    async def load_constraints(self) -> dict[str, Any]:
        """Return none: no scenario sets any."""
        return {}

    async def load_drains(self) -> dict[str, float]:
        """Return none."""
        return {}

    async def load_aliases(self) -> None:
        """Return none."""
        return

    async def write(self, effect: Write) -> None:
        """Write a record."""
        await self._ask(lambda redis: redis.write(effect))


class _SimPerformer(Performer):
    """The performer, whose question to a runner itself goes over the simulated network."""

    is_there: Callable[[RunnerView], Awaitable[bool]]

    async def _ask(self, effect: AskRunner) -> None:
        runner = effect.runner
        if await self.is_there(runner):
            await self._loop.post(RunnerAnswered(placement_id=runner.placement_id, generation=runner.generation))


class SimScheduler(Process):
    """One life of a scheduler."""

    def __init__(
        self,
        network: Network,
        name: str,
        life: int,
        policy: Policy,
        *,
        rate: float,
        find_redis: Callable[[], SimRedis | None],
        find_discovery: Callable[[], SimDiscovery | None],
        find_host: Callable[[str], SimHost | None],
        find_runner: Callable[[str], RunnerProcess | None],
        on_handled: Callable[["SimScheduler", list[Effect]], None],
    ) -> None:
        super().__init__(network, f"scheduler {name}.{life}", name)
        self.clock.rate = rate
        self._find_discovery = find_discovery
        self._details = KeptDetails()
        board = RouteBoard(self.clock, self._details)
        callers = Callers()
        ids = itertools.count(1)
        self.core = SchedulerCore(policy, lambda: f"{name}-{life}-{next(ids)}")
        self._loop = CoreLoop(self.core, self.clock, board)
        store: Any = _StoreClient(self, find_redis)
        hosts: Any = SimHostClient(self, find_host)
        self.leadership = Leadership(
            store, self.clock, f"{name}.{life}@{name}", on_change=self._loop.post_soon, on_end=self._stop_commanding
        )
        nothing: Any = None  # no node is removed
        self.servicer = SchedulerServicer(self._loop, callers, board, nothing)
        self._writer = Writer(self._loop, store, self.leadership.check)
        self._performer = _SimPerformer(
            loop=self._loop, hosts=hosts, writer=self._writer, leadership=self.leadership, callers=callers, board=board
        )
        self._performer.is_there = self._is_there
        self._find_runner = find_runner
        handle = self.core.handle

        def handle_and_tell(event: Any, now_s: float) -> list[Effect]:
            effects = handle(event, now_s)
            network.events += 1
            on_handled(self, effects)
            return effects

        self.core.handle = handle_and_tell  # type: ignore[method-assign]  # every event is looked at
        self.spawn(self._loop.run(self._performer.perform, self.leadership), "core")
        self.spawn(self._writer.run(), "writes")
        self.spawn(self.leadership.run(), "leadership")
        self.spawn(self._watch_inventory(), "inventory")

    async def _is_there(self, runner: RunnerView) -> bool:
        found = self._find_runner(runner.address)
        try:
            if found is None:
                return False
            await self.network.ask(self, found, lambda: found.servicer.GetInfo(INFO, CONTEXT), timeout_s=ANSWER_S_MAX)
        except PunaError:
            return False
        return True

    def _stop_commanding(self) -> None:
        self._performer.stop_commanding()

    def kill(self) -> None:
        """End it with the commands under way."""
        super().kill()
        self._performer.stop_commanding()

    async def _watch_inventory(self) -> None:
        def connected(is_connected: bool) -> None:
            if not is_connected:
                self._loop.post_soon(InventoryLost())

        laid, known_models = Laid(), 0
        streams = watch(self._inventories, on_lost=lambda _error, _failures: None, on_connection=connected)
        async with closing(streams) as messages:
            async for message in messages:
                await self.awake()
                copy = discovery_pb2.Inventory()
                copy.CopyFrom(message)
                seen = laid.take(copy)
                if seen.models_changes != known_models:
                    known_models = seen.models_changes
                    self._details.take(model for node in seen.nodes for model in node.models)
                await self._loop.post_inventory(seen)

    async def _inventories(self) -> AsyncGenerator[discovery_pb2.Inventory, None]:
        discovery = self._find_discovery()
        if discovery is None:
            raise ModelUnavailable("service unreachable: Connection refused")
        async for message in self.network.stream(self, discovery, discovery.inventories):
            yield message


class SimSchedulerClient:
    """As `scheduler.client.SchedulerClient`: the next scheduler is tried where one is away or does not lead."""

    def __init__(self, caller: Process, find: Callable[[], list[SimScheduler]]) -> None:
        self._caller = caller
        self._find = find
        self._preferred = 0

    async def ensure_model(
        self, request: scheduler_pb2.EnsureModelRequest
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Have a replica of a model."""
        search = LeaderSearch(LEADER_WAIT_S)
        while True:
            try:
                server = self._server()
                events = self._caller.network.stream(
                    self._caller,
                    server,
                    lambda server=server: server.servicer.EnsureModel(request, CONTEXT),  # type: ignore[misc]
                )
                async with closing(events) as answers:
                    async for event in answers:
                        search = LeaderSearch(LEADER_WAIT_S)
                        yield event
            except ELSEWHERE as error:
                self._preferred += 1
                await search.go_on(error, addresses=len(self._find()))
            else:
                return

    def watch_routes(
        self, *, on_connection: Callable[[bool], None] = lambda _connected: None
    ) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Iterate over routing tables."""

        def lose(error: PunaError | None, _failures: int) -> None:
            self._preferred += error is not None

        return watch(self._routes, on_lost=lose, on_connection=on_connection)

    async def _routes(self) -> AsyncGenerator[scheduler_pb2.RouteTable, None]:
        server = self._server()
        details = KeptDetails()
        streams = self._caller.network.stream(
            self._caller, server, lambda: server.servicer.WatchRoutes(scheduler_pb2.WatchRoutesRequest(), CONTEXT)
        )
        async with closing(streams) as tables:
            async for table in tables:
                copy = scheduler_pb2.RouteTable()
                copy.CopyFrom(table)
                details.take(route.model for route in copy.routes)
                for route in copy.routes:
                    details.complete(route.model)
                yield copy

    def _server(self) -> SimScheduler:
        servers = self._find()
        if not servers:
            raise ModelUnavailable("service unreachable: Connection refused")
        return servers[self._preferred % len(servers)]

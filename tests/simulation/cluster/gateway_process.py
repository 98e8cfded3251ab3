"""Gateways: dispatch, queues, resume, stall detection and parsing as they are; only gRPC clients are replaced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from common.closing import closing
from common.errors import ModelUnavailable, RequestTimeout
from gateway.answers.inference import Inference
from gateway.replicas.dispatch import Dispatcher
from gateway.replicas.routes import RouteCache, watch_routes
from gateway.templates.chat_prompt import ChatPrompts
from protos import cluster_pb2, runner_pb2
from tests.simulation.cluster.discovery_process import CONTEXT
from tests.simulation.cluster.network import Network, Process
from tests.simulation.cluster.runner_process import RunnerProcess
from tests.simulation.cluster.scheduler_process import SimScheduler, SimSchedulerClient

QUEUE_MAX = 64
QUEUE_WAIT_S = 30.0
LOAD_STALL_S = 300.0
REQUEST_TIMEOUT_S = 600.0


class SimRunnerClient:
    """As `runner.client.RunnerClient`, over the simulated network."""

    def __init__(self, caller: Process, runner: RunnerProcess | None) -> None:
        self._caller = caller
        self._runner = runner

    async def generate(
        self,
        request: runner_pb2.GenerateRequest,
        *,
        timeout_s: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Yield the events of one sequence."""
        runner = self._found()
        on_sent()
        loop = asyncio.get_running_loop()
        until_s = None if timeout_s is None else loop.time() + timeout_s
        events = self._caller.network.stream(self._caller, runner, lambda: runner.generate(request))
        runner.wanted.add(request.sampling.seed)
        try:
            async with closing(events) as answers:
                while True:
                    try:
                        async with asyncio.timeout_at(until_s):
                            event = await anext(answers, None)
                    except TimeoutError as error:
                        raise RequestTimeout("request timed out") from error
                    if event is None:
                        return
                    yield event
        finally:
            runner.wanted.discard(request.sampling.seed)

    async def probation(
        self, request: runner_pb2.ProbationRequest, *, timeout_s: float | None = None
    ) -> AsyncIterator[runner_pb2.ProbationGranted]:
        """Yield once the place is free; keep it until the iterator is closed."""
        runner = self._found()
        grants = self._caller.network.stream(self._caller, runner, lambda: runner.servicer.Probation(request, CONTEXT))
        async with closing(grants) as held:
            async for granted in held:
                yield granted

    async def watch_load(self, *, held_prefixes: bool = False) -> AsyncIterator[cluster_pb2.RunnerStatus]:
        """Yield the status now and after every change."""
        runner = self._found()
        request = runner_pb2.WatchLoadRequest(held_prefixes=held_prefixes)
        events = self._caller.network.stream(self._caller, runner, lambda: runner.servicer.WatchLoad(request, CONTEXT))
        async with closing(events) as statuses:
            async for status in statuses:
                yield status

    async def close(self) -> None:
        """Do nothing: calls end with their readers."""

    def _found(self) -> RunnerProcess:
        if self._runner is None:
            raise ModelUnavailable("service unreachable: Connection refused")
        return self._runner


class SimGateway(Process):
    """One life of a gateway."""

    def __init__(
        self,
        network: Network,
        name: str,
        life: int,
        *,
        find_schedulers: Callable[[], list[SimScheduler]],
        find_runner: Callable[[str], RunnerProcess | None],
    ) -> None:
        super().__init__(network, f"gateway {name}.{life}", name)
        scheduler: Any = SimSchedulerClient(self, find_schedulers)
        self.routes = RouteCache()

        def connect(address: str, _peer: str) -> Any:
            return SimRunnerClient(self, find_runner(address))

        self.dispatcher = Dispatcher(
            routes=self.routes,
            scheduler=scheduler,
            clock=self.clock,
            queue_max=QUEUE_MAX,
            queue_wait_s=QUEUE_WAIT_S,
            load_stall_s=LOAD_STALL_S,
            connect=connect,
        )
        nothing: Any = None  # raw prompts need no renderer, and no request has a constraint
        self.inference = Inference(
            dispatcher=self.dispatcher,
            prompts=ChatPrompts(nothing),
            constraints=nothing,
            clock=self.clock,
            request_timeout_s=REQUEST_TIMEOUT_S,
        )
        self.spawn(watch_routes(self.routes, scheduler), "routes")
        self.spawn(self.dispatcher.pool.watch_silence(), "silence")

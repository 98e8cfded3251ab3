"""Surroundings of a scheduler: a real Redis, and a node and a discovery that speak real gRPC and behave."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

from common.clock import SystemClock
from common.grpc.server import GrpcServer, bind_server
from protos import discovery_pb2_grpc, host_pb2_grpc, scheduler_pb2
from scheduler.app import SchedulerApp
from scheduler.client import SchedulerClient
from scheduler.settings import SchedulerSettings
from tests.integration.scheduler.node_servicer import NodeAndDiscovery
from tests.redis_server import RedisServer


@asynccontextmanager
async def short_directory() -> AsyncIterator[Path]:
    """A directory whose path leaves room for socket names."""
    directory = Path(tempfile.mkdtemp(prefix="puna-s-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@asynccontextmanager
async def redis_server(directory: Path, *, started: bool = True) -> AsyncIterator[RedisServer]:
    server = RedisServer(directory)
    if started:
        await server.start()
    try:
        yield server
    finally:
        await server.kill()


@asynccontextmanager
async def node_and_discovery(directory: Path) -> AsyncIterator[NodeAndDiscovery]:
    node = NodeAndDiscovery()

    def register(server: aio.Server) -> None:
        host_pb2_grpc.add_HostServicer_to_server(node, server)
        discovery_pb2_grpc.add_DiscoveryServicer_to_server(node, server)

    server: GrpcServer = bind_server(f"unix:{directory}/node.sock", register=register, services=[])
    node.address = server.address
    await server.start()
    reports = asyncio.create_task(node.report_every_second())
    try:
        yield node
    finally:
        reports.cancel()
        await asyncio.gather(reports, return_exceptions=True)
        await server.stop(0)


@dataclass(kw_only=True)
class Running:
    """A scheduler in this process, and a client of it."""

    app: SchedulerApp
    client: SchedulerClient
    stop: asyncio.Event

    async def ensure(
        self, name: str = "m", **fields: Any
    ) -> tuple[list[scheduler_pb2.EnsureModelEvent], scheduler_pb2.ModelRoute]:
        """Every event, and the route."""
        request = scheduler_pb2.EnsureModelRequest(model_name=name, **fields)
        events = [event async for event in self.client.ensure_model(request)]
        assert events[-1].WhichOneof("event") == "ready"
        return events, events[-1].ready.route

    async def routes(self) -> scheduler_pb2.RouteTable:
        """The newest table."""
        async for table in self.client.watch_routes():
            return table
        raise AssertionError("the table never came")

    async def placements(self, name: str = "m") -> list[str]:
        """Placements in the route of a model."""
        table = await self.routes()
        return [
            replica.placement.placement_id
            for route in table.routes
            if route.model.name == f"{name}:latest"
            for replica in route.replicas
        ]


@asynccontextmanager
async def scheduler(directory: Path, redis_url: str, node: NodeAndDiscovery, **settings: Any) -> AsyncIterator[Running]:
    stop = asyncio.Event()
    app = SchedulerApp(
        SchedulerSettings(
            scheduler_listen=settings.pop("listen", f"unix:{directory}/scheduler.sock"),
            discovery_address=node.address,
            redis_url=redis_url,
            **settings,
        ),
        SystemClock(),
    )
    task = asyncio.create_task(app.run(stop))
    client = SchedulerClient(app.address)
    try:
        yield Running(app=app, client=client, stop=stop)
    finally:
        await client.close()
        stop.set()
        await task

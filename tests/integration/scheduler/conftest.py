"""A scheduler with everything that it needs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.scheduler.node_servicer import NodeAndDiscovery
from tests.integration.scheduler.surroundings import (
    Running,
    node_and_discovery,
    redis_server,
    scheduler,
    short_directory,
)
from tests.redis_server import RedisServer
from tests.waiting import until


@pytest.fixture
async def directory() -> AsyncIterator[Path]:
    async with short_directory() as directory:
        yield directory


@pytest.fixture
async def redis(directory: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(directory) as server:
        yield server


@pytest.fixture
async def node(directory: Path) -> AsyncIterator[NodeAndDiscovery]:
    async with node_and_discovery(directory) as node:
        yield node


@pytest.fixture
async def running(directory: Path, redis: RedisServer, node: NodeAndDiscovery) -> AsyncIterator[Running]:
    """A scheduler that leads and knows its node."""
    async with scheduler(directory, redis.url, node) as running:
        state = running.app.core.state
        await until(
            lambda: state.leadership is not None and bool(state.observed.nodes), what="the scheduler leads and sees"
        )
        yield running

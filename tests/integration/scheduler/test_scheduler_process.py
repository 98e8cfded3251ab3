"""`python -m scheduler` as an operator sees it."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.redis_server import RedisServer, older
from tests.waiting import next_look

ROOT = Path(__file__).resolve().parents[3]


async def start(**settings: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")} | settings
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler"), cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )


async def last_words(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(120):
        _, text = await process.communicate()
    return process.returncode, text.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PUNA_REDIS_URL": "nonsense"}, "puna scheduler: PUNA_REDIS_URL: "),
        ({"PUNA_KEEP_ALIVE": "soon"}, "puna scheduler: PUNA_KEEP_ALIVE: "),
        ({"PUNA_SCHEDULER_LISTEN": "0.0.0.0:0"}, "puna scheduler: 0.0.0.0:0 can be reached from other machines"),
        ({"PUNA_KEEPALIVE": "5m"}, "puna scheduler: unknown setting PUNA_KEEPALIVE"),
    ],
)
async def test_what_it_cannot_start_with_is_one_line_and_status_1(settings: dict[str, str], words: str) -> None:
    status, text = await last_words(await start(**({"PUNA_SCHEDULER_LISTEN": "127.0.0.1:0"} | settings)))
    assert status == 1
    assert text.startswith(words)


async def test_a_port_that_is_taken_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, text = await last_words(await start(PUNA_SCHEDULER_LISTEN=address))
    assert status == 1
    assert text == f"puna scheduler: {address} is already in use"


async def test_a_redis_with_a_known_hole_is_refused_over_the_network(directory: Path, redis: RedisServer) -> None:
    async with older(redis) as server:
        settings = {"PUNA_SCHEDULER_LISTEN": f"unix:{directory}/s.sock", "PUNA_REDIS_URL": server.url}
        status, text = await last_words(await start(**settings))
        assert status == 1
        assert text.startswith("puna scheduler: PUNA_REDIS_URL: Valkey 8.1.3 lets its clients run code in it")
        accepted = await start(**settings, PUNA_REDIS_ANY_VERSION="1")
        async with redis.client() as client, asyncio.timeout(120):
            while not await client.get("{sched}:leader"):
                await next_look()
        accepted.send_signal(signal.SIGTERM)
        assert (await last_words(accepted))[0] == 0


async def test_a_signal_ends_it_in_order_and_the_lease_is_given_back(directory: Path, redis: RedisServer) -> None:
    process = await start(
        PUNA_SCHEDULER_LISTEN=f"unix:{directory}/s.sock",
        PUNA_DISCOVERY_ADDRESS=f"unix:{directory}/nobody.sock",
        PUNA_REDIS_URL=redis.url,
    )
    async with redis.client() as client:
        async with asyncio.timeout(120):
            while not await client.get("{sched}:leader"):
                await next_look()
        process.send_signal(signal.SIGTERM)
        status, text = await last_words(process)
        assert status == 0
        assert "service.stopped" in text
        assert await client.get("{sched}:leader") is None
        assert int(await client.get("{sched}:fence")) > 0

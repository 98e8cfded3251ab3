"""The primary of Redis is cut off from its replica, which sentinels make primary: two leaders, and lost writes.

Two of three sentinels and a scheduler are on the replica's machine. Everything else goes on seeing both sides.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import redis

from cli.cluster.plan import embedded_redis_server
from common.errors import PunaError
from protos import scheduler_pb2
from scheduler.client import SchedulerClient
from tests.faults.bars.bar import Round
from tests.faults.bars.cuts import Chosen, Cut, described, machine_each
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import COLD, MODEL, Place, Rig, Service, add_redis, running_rig
from tests.ports import free_port
from tests.waiting import wait_until

PER_SECOND = 4.0
FAKE = {"step_s": 0.04}
REPLICAS = 2
SET = "puna"
SENTINELS = ("redis", "replica", "replica")  # their machines: the majority is the replica's
SERVICES = ("redis", "replica", "discovery", "scheduler-0", "gateway-0", "host-a", "host-b")
OLD, NEW = "scheduler-0", "scheduler-1"
COMMAND_S_MAX = 5.0
FAILOVER_S_MAX = 30.0
DEMOTED_S_MAX = 60.0


async def split(directory: Path, chosen: Chosen, cut_s: float) -> Round:
    """Cut the primary off for a while, in a cluster of its own."""
    with machine_each(SERVICES) as places:

        def at(name: str) -> Place:
            return places["replica" if name == NEW else name]

        async with running_rig(
            directory,
            replicas=REPLICAS,
            schedulers=2,
            nodes=("a", "b"),
            fake=FAKE,
            places=at,
            store=lambda rig: _add_set(rig, places),
            unready=(NEW,),
        ) as rig:
            await rig.leads(OLD)
            rig.start(NEW)
            await rig.logged(NEW, "scheduler.ready", 1)
            await asyncio.to_thread(wait_until, lambda: _is_whole(rig), deadline_s=60, what="the set of Redis is whole")
            await rig.control_until(load=False, deadline_s=60)
            async with OpenLoop(rig.gateways, PER_SECOND) as load:
                found = await _cut(rig, Cut.of_link(rig, *chosen), cut_s)
                await load.stop()
                return {"fault": described(chosen), **found, "load": load.take()}


async def _cut(rig: Rig, cut: Cut, cut_s: float) -> Round:
    runners = await asyncio.to_thread(rig.serving)
    cut.inject()
    begun_s = time.monotonic()
    try:
        await rig.control_until(load=True, deadline_s=COMMAND_S_MAX)  # a write that the replica never gets
        await _until(lambda: _leads_behind_the_cut(rig), FAILOVER_S_MAX)
        led_s = time.monotonic()
        await _until(lambda: _is_known(rig), FAILOVER_S_MAX)
        known_s = time.monotonic() - led_s
        refused = _refusals(rig)
        while not (refusals := _refusals(rig) - refused) and time.monotonic() < begun_s + cut_s:
            await _command(rig)
        await asyncio.sleep(max(0.0, begun_s + cut_s - time.monotonic()))
        packets = cut.packets()
    finally:
        cut.heal()
    healed_s = time.monotonic()
    await rig.control_until(load=False, deadline_s=90)
    healed_s = time.monotonic() - healed_s
    await _until(lambda: _role(rig, "redis") == "slave", DEMOTED_S_MAX)
    await rig.control_until(load=True, deadline_s=90)
    await rig.serves(REPLICAS)
    return {
        "proven": packets > 0,
        "figures": {
            "packets": packets,
            "known_s": known_s,
            "refusals": refusals,
            "healed_s": healed_s,
            "stopped": len(runners - await asyncio.to_thread(rig.serving)),
        },
    }


def _add_set(rig: Rig, places: dict[str, Place]) -> str:
    """Add a primary, its replica and three sentinels; return their URL."""
    add_redis(rig, "redis", places["redis"])
    primary = rig.address("redis").replace(":", " ")
    add_redis(rig, "replica", places["replica"], "--replicaof", *primary.split(), "--repl-diskless-sync-delay", "0")
    names = [f"sentinel-{number}" for number in range(len(SENTINELS))]
    for name, machine in zip(names, SENTINELS, strict=True):
        place, port, home = places[machine], free_port(), rig.directory / name
        home.mkdir()
        (home / "sentinel.conf").write_text(
            f"port {port}\nbind {place.address}\nprotected-mode no\ndir {home}\nsentinel monitor {SET} {primary} 2\n"
            f"sentinel down-after-milliseconds {SET} 3000\nsentinel failover-timeout {SET} 10000\n"
        )
        command = [str(embedded_redis_server()), str(home / "sentinel.conf"), "--sentinel"]
        rig.services[name] = Service(module=command, environment={}, port=port, place=place)
    return f"redis+sentinel://{','.join(map(rig.address, names))}/{SET}/0"


def _client(rig: Rig, name: str) -> "redis.Redis":
    service = rig.services[name]
    return redis.Redis(service.place.address, service.port, decode_responses=True, socket_timeout=5)


def _is_whole(rig: Rig) -> bool:
    """Return True once the replica follows and each sentinel knows everything."""
    with suppress(redis.RedisError), _client(rig, "replica") as replica:
        if replica.info("replication").get("master_link_status") != "up":
            return False
        for number in range(len(SENTINELS)):
            with _client(rig, f"sentinel-{number}") as sentinel:
                known = sentinel.sentinel_master(SET)
                if (known["num-other-sentinels"], known["num-slaves"]) != (len(SENTINELS) - 1, 1):
                    return False
        return True
    return False


def _role(rig: Rig, name: str) -> str:
    with suppress(redis.RedisError), _client(rig, name) as client:
        return str(client.info("replication")["role"])
    return ""


def _leads_behind_the_cut(rig: Rig) -> bool:
    with _client(rig, "replica") as replica:
        return _role(rig, "replica") == "master" and str(replica.get("{sched}:leader")).endswith(rig.address(NEW))


def _is_known(rig: Rig) -> bool:
    """Return True once the replica has the placement that was written after the cut, and those before."""
    with _client(rig, "replica") as replica:
        records = "".join(replica.hgetall("{sched}:placements").values())
    return COLD in records and records.count(f"{MODEL}:latest") >= REPLICAS


def _refusals(rig: Rig) -> int:
    """Count how often the old leader led anew because a host knew a higher fence."""
    return sum(one["before"] > 0 for one in rig.events(OLD, "leadership.gained"))


async def _command(rig: Rig) -> None:
    """Have the new leader unload the cold model, whose host then knows its fence, and the old one load it again."""
    with suppress(PunaError, TimeoutError):
        async with asyncio.timeout(COMMAND_S_MAX), SchedulerClient(rig.address(NEW)) as new:
            await new.unload_model(COLD)
    with suppress(PunaError, TimeoutError):
        async with asyncio.timeout(COMMAND_S_MAX), SchedulerClient(rig.address(OLD)) as old:
            async for _ in old.ensure_model(scheduler_pb2.EnsureModelRequest(model_name=COLD, load_only=True)):
                pass


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    """Return once it holds; the event loop goes on."""
    await asyncio.to_thread(wait_until, condition, deadline_s=limit_s, what=condition.__qualname__)

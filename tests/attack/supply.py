"""Attacks through what the cluster relies on: its Redis and its audit log (trust 5)."""

import asyncio
import json
import os
import sys

from tests.attack.stage import Attack, Outcome, Stage
from tests.redis_server import older, redis_server
from tests.waiting import next_look

LED_WITHIN_S = 15.0


async def offer_vulnerable_redis(stage: Stage) -> Outcome:
    """Let a scheduler use a Redis over TCP in which clients can run code."""
    async with redis_server() as redis, older(redis) as server, redis.client() as client:
        settings = {
            "PYTHONPATH": stage.path,
            "PUNA_SCHEDULER_LISTEN": f"unix:{stage.directory}/s.sock",
            "PUNA_DISCOVERY_ADDRESS": f"unix:{stage.directory}/none.sock",
            "PUNA_REDIS_URL": server.url,
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scheduler"),
            cwd=stage.tree,
            env=os.environ | settings,
            stderr=asyncio.subprocess.PIPE,
        )
        led = False
        try:
            async with asyncio.timeout(LED_WITHIN_S):
                while process.returncode is None and not led:
                    led = bool(await client.get("{sched}:leader"))
                    await next_look(0.1)
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()
            _, said = await process.communicate()
    return Outcome(led, "it is used" if led else said.decode().splitlines()[-1][:160])


async def act_without_audit(stage: Stage) -> Outcome:
    """Change an alias while the audit log cannot be written."""
    path = stage.directory / "audit"
    alias = "/puna/v1/aliases/unlogged"
    path.unlink(missing_ok=True)
    path.mkdir()
    try:
        async with stage.client() as client:
            answer = await client.put(alias, json={"model": "demo"})
            names = json.dumps((await client.get("/puna/v1/aliases")).json())
    finally:
        path.rmdir()
    done = "unlogged" in names
    return Outcome(done, f"{answer.status_code}; the alias {'was set' if done else 'was not set'}")


ATTACKS = (
    Attack(name="vulnerable Redis over TCP", row="5", input="Valkey 8.1.3 by its INFO", act=offer_vulnerable_redis),
    Attack(
        name="administrative act without audit",
        row="5",
        input="a folder in the place of the log",
        act=act_without_audit,
    ),
)

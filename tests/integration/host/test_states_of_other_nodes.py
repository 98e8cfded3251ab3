"""Conversations that go on at another node: real hosts, a real discovery, and processes that are killed on the way."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.errors import PunaError
from protos import cluster_pb2, host_pb2, runner_pb2
from runner.client import RunnerClient
from tests.integration.host.node import Node, running_node
from tests.integration.host.test_saved_states import LONG, PROMPT, READY, ask, computed, question, saved
from tests.integration.runner.processes import greedy
from tests.open_files import open_files
from tests.ports import free_port
from tests.waiting import next_look, until

MIXED = [pytest.param(0, id="connected"), pytest.param(600, id="record"), pytest.param(60_000, id="data")]


@dataclass
class Wire:
    """Forwards one port to another. Once `act_at` bytes have come back from there, it runs `act` and cuts the wire."""

    port: int = field(default_factory=free_port)
    target: str = ""
    act_at: int = 0
    act: Callable[[], None] | None = None
    returned_bytes: int = 0

    @property
    def has_acted(self) -> bool:
        return self.act is None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer, counts=True))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool = False) -> None:
        try:
            while data := await reader.read(4096):
                if counts:
                    self.returned_bytes += len(data)
                    if self.act is not None and self.returned_bytes > self.act_at:
                        act, self.act = self.act, None
                        act()
                        return  # what the kernel still holds of a killed sender would arrive
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@dataclass
class Two:
    """Two nodes of one discovery; `b` reaches `a` over the wire."""

    a: Node
    b: Node
    wire: Wire


@pytest.fixture
async def two(tmp_path: Path, models_directory: Path) -> AsyncIterator[Two]:
    wire = Wire()
    tiers = {"PUNA_STATES_RAM": "64MiB", "PUNA_STATES_DISK": "64MiB"}
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(wire.serve, "127.0.0.1", wire.port)
        stack.callback(server.close)
        advertised = {"PUNA_NODE_ADVERTISE": f"127.0.0.1:{wire.port}"}
        nodes = running_node(tmp_path / "a", models_directory, PUNA_NODE_ID="a", **advertised, **tiers)
        a = await stack.enter_async_context(nodes)
        shared = {"PUNA_DISCOVERY_ADDRESS": a.discovery_address, "PUNA_NODE_ID": "b"}
        nodes = running_node(tmp_path / "b", models_directory, **shared, **tiers)
        b = await stack.enter_async_context(nodes)
        b.discovery_address = a.discovery_address
        wire.target = a.address
        await a.inventory(lambda inventory: {node.id for node in inventory.nodes if node.models} == {"a", "b"})
        yield Two(a, b, wire)


async def start(node: Node) -> tuple[host_pb2.StartRequest, cluster_pb2.RunnerRecord]:
    request = await node.start_request(layout=LONG)
    record = await node.run(request)
    assert record.status.state == READY
    return request, record


def at_a(**fields: Any) -> runner_pb2.GenerateRequest:
    """The question, with the hint that node a has its state."""
    return question(state_node_id="a", **fields)


async def metric(node: Node, name: str) -> float:
    own_id = node.environment["PUNA_NODE_ID"]
    inventory = await node.inventory(lambda seen: any(one.id == own_id for one in seen.nodes))
    address = next(one.metrics_address for one in inventory.nodes if one.id == own_id)
    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(f"http://{address}/metrics")).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(name))


def memory_files(node: Node) -> int:
    """Memory files that the host has open."""
    return sum("memfd" in target for target in open_files(node.host.process.pid))


async def nothing_is_left(node: Node) -> None:
    """Every open memory file is a state that counts, and no unfinished file lies on disk; at last after 60 s."""

    async def is_clean() -> bool:
        in_ram = await metric(node, 'puna_host_states{tier="ram"}')
        return memory_files(node) == in_ram and not list((node.home / "states").glob("*.new"))

    async with asyncio.timeout(60):
        while not await is_clean():
            await next_look()


async def test_a_conversation_goes_on_at_another_node_without_being_computed_again(two: Two) -> None:
    _, first = await start(two.a)
    before = await ask(first)
    assert computed(before) > 200
    await saved(two.a, first)
    _, second = await start(two.b)
    after = await ask(second, at_a())
    assert (computed(after), after.text) == (1, before.text)
    assert await metric(two.b, 'puna_host_states_fetched_total{result="fetched"}') == 1
    assert await metric(two.a, "puna_host_states_sent_total") == 1
    await nothing_is_left(two.a)
    await nothing_is_left(two.b)


async def test_without_a_node_that_has_it_a_prompt_is_computed(two: Two) -> None:
    _, first = await start(two.a)
    before = await ask(first)
    await saved(two.a, first)
    _, second = await start(two.b)
    for node_id in ("", "nowhere"):
        text = f"{node_id} {PROMPT}"
        after = await ask(second, question(text, state_node_id=node_id))
        assert computed(after) > 200
    assert (await ask(second, question())).text == before.text


async def test_a_tenants_state_is_not_fetched_for_another(two: Two) -> None:
    _, first = await start(two.a)
    await ask(first, question(cache_salt="one"))
    await saved(two.a, first)
    _, second = await start(two.b)
    assert computed(await ask(second, at_a(cache_salt="other"))) > 200
    assert await metric(two.b, 'puna_host_states_fetched_total{result="none"}') == 1
    assert computed(await ask(second, at_a(cache_salt="one"))) == 1


async def test_a_state_that_only_this_node_was_told_to_forget_does_not_come_back_from_another(two: Two) -> None:
    _, first = await start(two.a)
    await ask(first, question(cache_salt="one"))
    await saved(two.a, first)
    await two.b.client.forget_states(two.b.address, "one")
    _, second = await start(two.b)
    assert computed(await ask(second, at_a(cache_salt="one"))) > 200
    assert await metric(two.b, 'puna_host_states_refused_total{reason="forgotten"}') == 1


@asynccontextmanager
async def running_answer(record: cluster_pb2.RunnerRecord, tokens: int) -> AsyncIterator["Moving"]:
    """An answer of which so many tokens have come."""
    async with RunnerClient(record.address) as client:
        moving = Moving()
        reading = asyncio.create_task(moving.read(client))
        await until(lambda: len(moving.ids) >= tokens, what="the answer has begun")
        yield moving
        await reading


@dataclass
class Moving:
    """An answer that is cut off."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    error: PunaError | None = None

    async def read(self, client: RunnerClient) -> None:
        try:
            async for event in client.generate(greedy(PROMPT, cache_prompt=True, max_tokens=900)):
                self.text += event.tokens.text
                self.ids += [token.id for token in event.tokens.tokens]
        except PunaError as error:
            self.error = error


def restored_tokens(node: Node, record: cluster_pb2.RunnerRecord) -> int:
    """Inputs of the last restored state, by the runner's log."""
    log = next((node.home / "logs").glob(f"runner-{record.placement.placement_id}-*.log"))
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [int(event["tokens"]) for event in events if event["event"] == "state.restored"][-1]


@pytest.mark.parametrize("to", ["a", "b"])
async def test_an_answer_that_is_stopped_goes_on_elsewhere_from_its_last_token(two: Two, to: str) -> None:
    target = two.a if to == "a" else two.b
    request, first = await start(two.a)
    _, second = await start(target)
    await ask(second, greedy(PROMPT[::-1], cache_prompt=False, max_tokens=2))  # it knows how fast it computes
    async with running_answer(first, 80) as moving:
        await two.a.stop(request, drain_ms=0)
    assert moving.error is not None
    assert 80 <= len(moving.ids) < 900
    rest = await ask(second, resumed(moving))
    assert computed(rest) == 0
    assert restored_tokens(target, second) >= rest.finals[0].prompt_tokens + len(moving.ids) - 2
    whole = await ask(second, greedy(PROMPT, cache_prompt=False, max_tokens=200))
    assert (moving.text + rest.text)[: len(whole.text)] == whole.text


def resumed(moving: Moving) -> runner_pb2.GenerateRequest:
    more = max(len(moving.ids) + 1, 200)
    return greedy(PROMPT, cache_prompt=True, max_tokens=more, resume_token_ids=moving.ids, state_node_id="a")


@pytest.mark.parametrize("at_byte", MIXED)
async def test_a_sender_that_is_killed_while_it_sends_costs_a_prefill_and_nothing_else(two: Two, at_byte: int) -> None:
    _, first = await start(two.a)
    before = await ask(first)
    await saved(two.a, first)
    _, second = await start(two.b)
    two.wire.act_at, two.wire.act = at_byte, two.a.host.process.kill
    after = await ask(second, at_a())
    assert two.wire.has_acted, "the sender was killed"
    assert (computed(after) > 200, after.text) == (True, before.text)
    await nothing_is_left(two.b)
    await two.a.host.end(signal.SIGKILL)
    await two.a.restart_host()
    two.wire.target = two.a.address
    assert not list((two.a.home / "states").glob("*.new"))


@pytest.mark.parametrize("at_byte", MIXED)
async def test_a_receiving_host_that_is_killed_costs_a_prefill_and_nothing_else(two: Two, at_byte: int) -> None:
    _, first = await start(two.a)
    before = await ask(first)
    await saved(two.a, first)
    _, second = await start(two.b)
    two.wire.act_at, two.wire.act = at_byte, two.b.host.process.kill
    after = await ask(second, at_a())
    assert two.wire.has_acted, "the receiver was killed"
    assert (computed(after) > 200, after.text) == (True, before.text)
    await nothing_is_left(two.a)
    await two.b.host.end(signal.SIGKILL)
    await two.b.restart_host()
    await nothing_is_left(two.b)


@pytest.mark.parametrize("at_byte", MIXED)
async def test_a_runner_that_is_killed_while_it_waits_leaves_nothing_and_the_next_one_gets_the_state(
    two: Two, at_byte: int
) -> None:
    _, first = await start(two.a)
    before = await ask(first)
    await saved(two.a, first)
    _, second = await start(two.b)

    two.wire.act_at, two.wire.act = at_byte, lambda: os.kill(second.pid, signal.SIGKILL)
    with pytest.raises(PunaError):
        await ask(second, at_a())
    _, third = await start(two.b)
    after = await ask(third, at_a())
    assert (computed(after), after.text) == (1, before.text)
    await nothing_is_left(two.a)
    await nothing_is_left(two.b)

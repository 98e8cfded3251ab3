"""Inputs of clients and registries that cost or reach more than they should (trust 4)."""

import asyncio
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx

from protos import store_pb2
from tests.attack.calls import converse, exchange
from tests.attack.stage import METADATA, QUESTION, REGISTRY_PORT, ROOT, Act, Attack, Outcome, Stage
from tests.integration.host import test_pull_hostile as hostile_registry
from tests.integration.host.test_hostile_headers import HOSTILE as HEADERS
from tests.unit.gateway.templates.test_template_worker import LOOP
from tests.unit.runner.core.grammar.test_json_schema import HOSTILE as SCHEMAS
from tests.waiting import Stopwatch, next_look
from tools.model_zoo import build

# Another user's request takes less than a second; this is what a busy machine may add.
NEIGHBOUR_S = 10.0
PAUSE_S_MAX = 5.0  # bench/loop_lag.py measures the lag itself
TEXT_BYTES = 8 * 2**20 - 4096
HOSTS = ("evil.example", "evil.local", "evil.internal")
FOREIGN = f"Host {', '.join(HOSTS)}; Sec-Fetch-Site: cross-site; another Origin"


def spellings(address: str) -> list[str]:
    """Write an IPv4 address in each way that some reader of URLs takes for it."""
    parts = [int(part) for part in address.split(".")]
    number = int.from_bytes(bytes(parts), "big")
    pair = f"{number >> 16:x}:{number & 0xFFFF:x}"
    first, second, third, fourth = parts
    short = (f"{first}.{number % 2**24}", f"{first}.{second}.{256 * third + fourth}")
    dotted = [".".join(form.format(part) for part in parts) for form in ("0x{:x}", "0{:o}", "{:03}", "{:08}")]
    mapped = [f"[{before}{there}]" for before in ("::ffff:", "::", "64:ff9b::") for there in (address, pair)]
    escaped = "".join(f"%{ord(one):02x}" for one in address)
    whole = (str(number), f"0x{number:x}", f"0X{number:X}", f"0{number:o}", str(number + 2**32))
    dressed = (address, f"{address}.", f"a@{address}", f"a:b@{address}", escaped)
    return [*dressed, *whole, *short, *dotted, *mapped, f"[2002:{pair}::]", f"0x{first:x}.{second}.{third}.{fourth}"]


SPELLINGS = (
    *(one for address in (METADATA, "127.0.0.1", "0.0.0.0") for one in spellings(address)),
    *("localhost", "localhost.", "LOCALHOST", "a.localhost", "[::1]", "[0:0:0:0:0:0:0:1]", "[::]", "[::%31]"),
)
STATUSES = (401, 403, 500, 503)
UPLOADS = 8
HEADROOM_BYTES = 256 * 2**20


async def _neighbour(stage: Stage, attack: Awaitable[Any], body: dict[str, Any] | None = None) -> tuple[float, str]:
    """Return how long another user waited for the cluster while an attack ran, and the status of the answer."""
    evil = asyncio.ensure_future(attack)
    await next_look(0.3)
    watch = Stopwatch()
    try:
        async with asyncio.timeout(2 * NEIGHBOUR_S), stage.client() as client:
            answer = await client.post("/api/chat", json=body or QUESTION)
        said = f"{answer.status_code}"
    except (TimeoutError, httpx.HTTPError) as error:
        said = type(error).__name__
    waited_s = watch.wall_s
    evil.cancel()
    with suppress(asyncio.CancelledError, httpx.HTTPError):
        await evil
    return waited_s, said


def _schema(name: str) -> Callable[[Stage], Awaitable[Outcome]]:
    async def act(stage: Stage) -> Outcome:
        await stage.runner()
        async with stage.client() as client:
            body = QUESTION | {"format": SCHEMAS[name]}
            constrained = QUESTION | {"format": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
            evil = asyncio.gather(*(client.post("/api/chat", json=body) for _ in range(3)))
            waited_s, said = await _neighbour(stage, evil, constrained)
        damage = waited_s > NEIGHBOUR_S or said != "200"
        return Outcome(damage, f"another constrained request: {said} after {waited_s:.1f} s")

    return act


async def send_control_tokens(stage: Stage) -> Outcome:
    """8 MiB of the beginnings of control tokens; damage is a pause of the gateway's event loop."""
    await stage.runner()
    unit = "<|im_"  # with it begin those of the demo model
    body = json.dumps(QUESTION | {"messages": [{"role": "user", "content": unit * (TEXT_BYTES // len(unit))}]})
    pauses = []
    async with stage.client() as client, stage.client() as other:
        evil = asyncio.gather(*(client.post("/api/chat", content=body.encode()) for _ in range(4)))
        while not evil.done():
            watch = Stopwatch()
            with suppress(httpx.TimeoutException):
                await other.get("/healthz")
            pauses.append(watch.wall_s)
            await next_look(0.005)
            if pauses[-1] > PAUSE_S_MAX:
                evil.cancel()
        answers = await asyncio.gather(evil, return_exceptions=True)
    codes = sorted({one.status_code for one in answers[0]}) if isinstance(answers[0], list) else "nothing in time"
    worst_s = max(pauses)
    return Outcome(worst_s > PAUSE_S_MAX, f"answered {codes}; longest wait for /healthz {1000 * worst_s:.0f} ms")


async def loop_in_template(stage: Stage) -> Outcome:
    """A model whose chat template runs for ever, asked again and again."""
    await _with_template(stage)
    await stage.runner()

    async def ask() -> None:
        async with stage.client() as client:
            while True:
                await asyncio.gather(
                    *(client.post("/api/chat", json=QUESTION | {"model": "looping"}) for _ in range(8))
                )

    asking = asyncio.create_task(ask())
    waits, said = [], ""
    try:
        for _ in range(5):
            waited_s, said = await _neighbour(stage, next_look())
            waits.append(waited_s)
            if said != "200":
                break
    finally:
        asking.cancel()
    damage = max(waits) > NEIGHBOUR_S or said != "200"
    return Outcome(damage, f"another user's chats: {said}, at most {max(waits):.1f} s")


async def _with_template(stage: Stage) -> None:
    path = stage.directory / "looping.gguf"
    if not path.exists():
        tool = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--chat-template", LOOP]
        made = [*tool, str(ROOT / "models" / "demo.gguf"), str(path)]
        await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    assert await _create(stage, "looping", path.read_bytes()) == ""


async def _create(stage: Stage, name: str, content: bytes) -> str:
    """Upload a file and make a model of it, as `ollama create` does; the error, empty if it was made."""
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    async with stage.client() as client:
        sent = await client.post(f"/api/blobs/{digest}", content=content)
        if sent.status_code >= httpx.codes.BAD_REQUEST:
            return f"{sent.status_code} {sent.text[:120]}"
        made = await client.post("/api/create", json={"model": name, "files": {"m.gguf": digest}, "stream": False})
    return "" if made.status_code == httpx.codes.OK and "error" not in made.text else made.text[:160]


def _header(kind: str) -> Callable[[Stage], Awaitable[Outcome]]:
    async def act(stage: Stage) -> Outcome:
        change, words = HEADERS[kind]
        error = await _create(stage, "evil", change(build("dense", stage.directory).read_bytes()))
        assert not error or words in error or "gguf" in error.lower(), error
        return Outcome(not error, error or "a model was made of it")

    return act


async def announce_uploads(stage: Stage) -> Outcome:
    """Many uploads at once, each of which fits alone; damage is a promise of more room than there is."""
    upload_bytes = int(0.6 * (await asyncio.to_thread(stage.store_free_bytes) - HEADROOM_BYTES))
    room = len(stage.hosts)
    gateway, key = urlsplit(stage.url), stage.client().headers.get("authorization", "")
    async with AsyncExitStack() as stack:
        waiting = []
        for number in range(UPLOADS):
            reader, writer = await asyncio.open_connection(gateway.hostname, gateway.port)
            stack.callback(writer.close)
            head = f"POST /api/blobs/sha256:{number:064x} HTTP/1.1\r\nHost: {gateway.netloc}\r\n"
            head += f"Authorization: {key}\r\n" if key else ""
            writer.write(f"{head}Content-Length: {upload_bytes}\r\n\r\n".encode() + b"x" * 65536)
            waiting.append(asyncio.create_task(reader.readline()))
        done, taken = await asyncio.wait(waiting, timeout=6)
        for task in taken:
            task.cancel()
        statuses = sorted({task.result().decode()[9:12] for task in done})
    seen = f"{len(taken)} of {UPLOADS} of {upload_bytes >> 20} MiB taken, {room} fit; others: {statuses or 'none'}"
    return Outcome(len(taken) > room, seen)


def foreign_requests(own: str) -> list[tuple[str, str, dict[str, str]]]:
    """Return method, path and headers of requests that pages of others make, under rebound names and with links.

    `own`: host and port of the gateway, as a browser of its machine writes them.
    """
    paths = ("/api/tags", "/v1/models", "/puna/v1/nodes", "/metrics")
    rebound = [("GET", path, {"host": f"{name}:11434"}) for name in HOSTS for path in paths]
    rebound += [("POST", "/api/chat", {"host": f"{name}:11434", "origin": f"http://{name}:11434"}) for name in HOSTS]
    embedded = {"host": own, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    sent = {"host": own, "origin": "http://evil.example", "content-type": "text/plain"}
    return [*rebound, *(("GET", path, embedded) for path in paths), ("POST", "/api/chat", sent)]


def let_in(requests: list[tuple[str, str, dict[str, str]]], statuses: list[int]) -> Outcome:
    """Judge the statuses of foreign requests."""
    passed = [
        f"{method} {path} under {headers['host']}"
        for (method, path, headers), status in zip(requests, statuses, strict=True)
        if status == httpx.codes.OK
    ]
    return Outcome(bool(passed), f"{len(passed)} of {len(requests)} let in" + "".join(f"; {one}" for one in passed[:3]))


async def rebind_names(stage: Stage) -> Outcome:
    """Requests of pages of others: one whose name was pointed here, and one that embeds answers of this gateway."""
    requests = foreign_requests(urlsplit(stage.url).netloc)
    async with stage.client() as client:
        assert (await client.get("/api/tags")).status_code == httpx.codes.OK
        statuses = []
        for method, path, headers in requests:
            body = json.dumps(QUESTION) if method == "POST" else None
            statuses.append((await client.request(method, path, content=body, headers=headers)).status_code)
    return let_in(requests, statuses)


async def redirect_inside(stage: Stage) -> Outcome:
    """A registry that sends a pull to services of the node, under every spelling."""
    with stage.canary() as log, hostile_registry.scripted(address=stage.address, port=REGISTRY_PORT) as server:
        before = len(re.findall("GET|HEAD", log.read_text()))
        async with stage.client() as client:
            for spelling in SPELLINGS:
                server.respond = hostile_registry.redirecting_to(f"{spelling}:80")
                body = {"model": f"{stage.registry}/team/model", "insecure": True, "stream": False}
                await client.post("/api/pull", json=body)
        hits = len(re.findall("GET|HEAD", log.read_text())) - before
        assert server.asked
    return Outcome(hits > 0, f"{len(SPELLINGS)} spellings, {hits} requests came to services of the node")


async def refuse_at_registry(stage: Stage) -> Outcome:
    """A registry that refuses, while another node has a manifest under the same name."""
    there, here = stage.hosts
    stored = []
    blobs = {hashlib.sha256(one).hexdigest(): one for one in (hostile_registry.CONFIG, _demo())}
    with hostile_registry.scripted(address=stage.address, port=REGISTRY_PORT) as server:
        server.manifest = hostile_registry.manifest_with(*blobs.items())
        server.respond = partial(_blob, blobs)
        name = f"{stage.registry}/team/model:latest"
        error = await _pull(stage, there, name)
        assert not error, error
        for status in STATUSES:
            server.respond = partial(_refuse, status)
            if not await _pull(stage, here, name, there):
                stored.append(str(status))
                delete = store_pb2.DeleteRequest(name=name).SerializeToString()
                await exchange(here, "/puna.v1.ModelStore/Delete", delete, stage.insider("gateway"))
    return Outcome(
        bool(stored), f"{STATUSES}: the other node's manifest was stored after {', '.join(stored) or 'none'}"
    )


def _demo() -> bytes:
    return (ROOT / "models" / "demo.gguf").read_bytes()


def _blob(blobs: dict[str, bytes], asked: hostile_registry.Asked) -> hostile_registry.Answer | None:
    found = next((blob for digest, blob in blobs.items() if digest in asked.path), None)
    return None if found is None else hostile_registry.part_of(found, asked)


def _refuse(status: int, _asked: object) -> hostile_registry.Answer:
    return status, {}, b"{}"


async def _pull(stage: Stage, host: str, name: str, *sources: str) -> str:
    """Pull to one node; the error, empty if the model is there."""
    request = store_pb2.PullRequest(name=name, insecure=True, sources=sources).SerializeToString()
    return (await converse(host, "/puna.v1.ModelStore/Pull", request, stage.insider("gateway")))[1]


def _of(row: str, name: str, said: str, act: Act, *, breaks: bool = False, before: str = "") -> Attack:
    return Attack(name=name, row=row, input=said, act=act, breaks=breaks, before=before)


ATTACKS = (
    *(
        _of("4", f"hostile GGUF header: {kind}", "upload and create", _header(kind), before="it was refused, too")
        for kind in HEADERS
    ),
    _of("4", "names that were pointed here", FOREIGN, rebind_names),
    _of("4", "redirects into the node", ", ".join(SPELLINGS), redirect_inside),
    _of("4", "registry that refuses", f"answers {STATUSES}", refuse_at_registry),
    _of("4", "uploads of announced length", f"{UPLOADS} of 0.6 of the free space", announce_uploads),
    _of(
        "4",
        "beginnings of control tokens",
        f"chat text of {TEXT_BYTES} bytes",
        send_control_tokens,
        breaks=True,
        before="the demo model has few control tokens; with 6,244 of them the loop stood for 312 s",
    ),
    _of("4", "template that loops", "8 chats at once, again and again", loop_in_template, breaks=True),
    *(
        _of(
            "4",
            f"schema: {name}",
            f"format of {len(json.dumps(SCHEMAS[name]))} bytes",
            _schema(name),
            breaks=True,
            before="others did not wait there, either; it is at a limit that came later",
        )
        for name in SCHEMAS
    ),
)

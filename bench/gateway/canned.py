"""A cluster that costs next to nothing: a runner whose events are bytes made beforehand, and a scheduler that names it.

    python -m bench.gateway.canned SCHEDULER_PORT RUNNER_PORT [CONTROL_TOKENS [TRUST]]

TRUST is the directory of an authority; with it, both ask for certificates.

The prompt says how many tokens an answer has, and how many it gets a second; 0: all at once, one message each, as
quickly as the reader takes them.
"""

import asyncio
import contextlib
import math
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from common.trust.callers import server_credentials
from common.trust.identity import Identity
from protos import cluster_pb2, runner_pb2, scheduler_pb2

MODEL = "canned"
SLOTS = 512
_NODE = "bench"
RUNNER_ID = f"{_NODE}/canned"  # in its certificate: node and placement
_PLACEMENT = cluster_pb2.PlacementRef(placement_id="canned", generation=1, incarnation="one")
_NUMBERS = re.compile(r"answer=(\d+) rate=(\d+)")
_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] "
_STATUS_S = 1.0
TEXT = " word"


def prompt_text(tokens: int, rate: int) -> str:
    """Return the prompt of a client."""
    return f"answer={tokens} rate={rate}"


def _event(**fields: Any) -> bytes:
    return runner_pb2.GenerateEvent(**fields).SerializeToString()


_PROGRESS = _event(prompt=runner_pb2.PromptProgress(done_tokens=8, total_tokens=8))
_TOKEN = _event(tokens=runner_pb2.TokenChunk(text=TEXT, tokens=[runner_pb2.Token(id=7, piece=TEXT.encode())]))


def _final(count: int) -> bytes:
    final = runner_pb2.Final(reason=runner_pb2.DONE_REASON_LENGTH, prompt_tokens=8, generated_tokens=count)
    return _event(final=final)


def _wanted(request: runner_pb2.GenerateRequest) -> tuple[int, int]:
    """Return the number of tokens of an answer, and how many it gets a second."""
    found = _NUMBERS.search("".join(segment.text + segment.literal for segment in request.prompt))
    assert found is not None
    return int(found[1]), int(found[2])


def _step_s(rate: int) -> float:
    """Return the time of the next step: answers of one rate get their tokens at the same moments, as from an engine."""
    now_s = asyncio.get_running_loop().time()
    return math.ceil(now_s * rate) / rate if rate else now_s


async def generate(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """One answer."""
    count, rate = _wanted(runner_pb2.GenerateRequest.FromString(request))
    yield _PROGRESS
    loop = asyncio.get_running_loop()
    begun_s = _step_s(rate)
    for number in range(count):
        if rate and (wait_s := begun_s + number / rate - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        yield _TOKEN
    yield _final(count)


class _Sequence:
    """One answer of a multiplexed call."""

    def __init__(self, number: int, start: runner_pb2.StartSequence) -> None:
        self.number = number
        self.count, self.rate = _wanted(start.request)
        self.left = self.count
        self.credit_tokens = start.credit_tokens
        self.due_s = _step_s(self.rate)
        self.token = self.entry(_TOKEN)

    def entry(self, event: bytes) -> bytes:
        """Return an event as a part of StepEvents."""
        one = runner_pb2.SequenceEvent(sequence=self.number, event=runner_pb2.GenerateEvent.FromString(event))
        return runner_pb2.StepEvents(events=[one]).SerializeToString()

    def step(self, now_s: float) -> bytes:
        """Return the token that is due, if any, and the end behind the last one."""
        if self.credit_tokens <= 0 or self.due_s > now_s:
            return b""
        self.left, self.credit_tokens = self.left - 1, self.credit_tokens - 1
        self.due_s += 1 / self.rate if self.rate else 0.0
        return self.token if self.left else self.token + self.entry(_final(self.count))


class _Call:
    """All answers of a gateway: a message is a step, with a token for each of those that may have one."""

    def __init__(self) -> None:
        self._running: dict[int, _Sequence] = {}
        self._begun: list[bytes] = []
        self._news = asyncio.Event()

    async def read(self, commands: AsyncIterator[bytes]) -> None:
        async for raw in commands:
            command = runner_pb2.SequenceCommand.FromString(raw)
            number = command.sequence
            match command.WhichOneof("command"):
                case "start":
                    self._running[number] = _Sequence(number, command.start)
                    self._begun.append(self._running[number].entry(_PROGRESS))
                case "credit_tokens" if number in self._running:
                    self._running[number].credit_tokens += command.credit_tokens
                case "cancel":
                    self._running.pop(number, None)
            self._news.set()

    async def steps(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            parts, self._begun = self._begun, []
            # As in an engine's step, nothing overtakes: without a rate all answers advance together.
            if all(one.credit_tokens > 0 or one.rate for one in self._running.values()):
                parts += [one.step(now_s) for one in self._running.values()]
            self._running = {number: one for number, one in self._running.items() if one.left}
            if step := b"".join(parts):
                yield step
                continue
            due_s = [one.due_s for one in self._running.values() if one.rate and one.credit_tokens > 0]
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(due_s) - now_s if due_s else None)


async def multiplex(commands: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    """Serve the answers of a gateway."""
    call = _Call()
    reader = asyncio.create_task(call.read(commands))
    try:
        async for step in call.steps():
            yield step
    finally:
        reader.cancel()


async def watch_load(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Report a ready runner at a fixed interval."""
    while True:
        yield _status().SerializeToString()
        await asyncio.sleep(_STATUS_S)


def _status() -> cluster_pb2.RunnerStatus:
    return cluster_pb2.RunnerStatus(
        state=cluster_pb2.RUNNER_STATE_READY, load_fraction=1.0, slots_total=SLOTS, multiplexes=True
    )


def control_text(number: int) -> str:
    """Return the text of a control token of the model."""
    return f"<|reserved_special_token_{number}|>"


def _routes(runner: str, control_tokens: int) -> scheduler_pb2.RouteTable:
    description = cluster_pb2.ModelDescription(
        architecture="llama", context_tokens=4096, vocabulary_size=1024, capabilities=["completion"],
        chat_template=_TEMPLATE, metadata_json="{}",
        special_tokens=map(control_text, range(control_tokens)),
    )  # fmt: skip
    replica = scheduler_pb2.Replica(
        placement=_PLACEMENT,
        node_id=_NODE,
        address=runner,
        layout=cluster_pb2.Layout(context_tokens=4096, slots=SLOTS),
        status=_status(),
    )
    model = cluster_pb2.Model(name=f"{MODEL}:latest", digest="ab" * 32, size_bytes=1, description=description)
    return scheduler_pb2.RouteTable(routes=[scheduler_pb2.ModelRoute(model=model, replicas=[replica])])


async def serve(scheduler_port: int, runner_port: int, control_tokens: int = 0, *, trust: Path | None = None) -> None:
    """Both, until killed."""
    table = _routes(f"127.0.0.1:{runner_port}", control_tokens).SerializeToString()

    async def watch_routes(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield table
        await asyncio.Event().wait()

    handlers: dict[str, dict[str, Any]] = {
        "puna.v1.Runner": {"Generate": generate, "Multiplex": multiplex, "WatchLoad": watch_load},
        "puna.v1.Scheduler": {"WatchRoutes": watch_routes},
    }
    ports = {"puna.v1.Runner": runner_port, "puna.v1.Scheduler": scheduler_port}
    identities = {"puna.v1.Runner": f"runner/{RUNNER_ID}", "puna.v1.Scheduler": "scheduler"}
    servers: list[aio.Server] = []
    for service, methods in handlers.items():
        options = [("grpc.http2.min_recv_ping_interval_without_data_ms", 1000), ("grpc.max_receive_message_length", -1)]
        server = aio.server(options=options)
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: (
                grpc.stream_stream_rpc_method_handler(method)
                if method is multiplex
                else grpc.unary_stream_rpc_method_handler(method)
            )
            for name, method in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, made),))
        address = f"127.0.0.1:{ports[service]}"
        if trust is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, server_credentials(Identity(trust / identities[service])))
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    ports, tokens, trust = sys.argv[1:3], sys.argv[3:4], sys.argv[4:]
    asyncio.run(serve(*map(int, ports), *map(int, tokens), trust=Path(trust[0]) if trust else None))

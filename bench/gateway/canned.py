"""A cluster that costs next to nothing: a runner whose events are bytes made beforehand, and a scheduler that names it.

    python -m bench.gateway.canned SCHEDULER_PORT RUNNER_PORT [CONTROL_TOKENS [TRUST]]

TRUST is the directory of an authority; with it, both ask for certificates.

The prompt says how many tokens an answer has, and how many it gets a second; 0: all at once, one message each, as
quickly as the reader takes them.
"""

import asyncio
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


async def generate(request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """One answer."""
    asked = runner_pb2.GenerateRequest.FromString(request)
    text = "".join(segment.text + segment.literal for segment in asked.prompt)
    found = _NUMBERS.search(text)
    assert found is not None
    count, rate = int(found[1]), int(found[2])
    yield _PROGRESS
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    for number in range(count):
        if rate and (wait_s := begun_s + number / rate - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        yield _TOKEN
    final = runner_pb2.Final(reason=runner_pb2.DONE_REASON_LENGTH, prompt_tokens=8, generated_tokens=count)
    yield _event(final=final)


async def watch_load(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
    """Report a ready runner at a fixed interval."""
    while True:
        yield _status().SerializeToString()
        await asyncio.sleep(_STATUS_S)


def _status() -> cluster_pb2.RunnerStatus:
    return cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_READY, load_fraction=1.0, slots_total=SLOTS)


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
        "puna.v1.Runner": {"Generate": generate, "WatchLoad": watch_load},
        "puna.v1.Scheduler": {"WatchRoutes": watch_routes},
    }
    ports = {"puna.v1.Runner": runner_port, "puna.v1.Scheduler": scheduler_port}
    identities = {"puna.v1.Runner": f"runner/{RUNNER_ID}", "puna.v1.Scheduler": "scheduler"}
    servers: list[aio.Server] = []
    for service, methods in handlers.items():
        options = [("grpc.http2.min_recv_ping_interval_without_data_ms", 1000), ("grpc.max_receive_message_length", -1)]
        server = aio.server(options=options)
        made: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_stream_rpc_method_handler(method) for name, method in methods.items()
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

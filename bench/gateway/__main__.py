"""`make bench-gateway`: see METHODOLOGY.md. The gateway has one core to itself, clients and runner the others."""

import argparse
import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The runner's own gRPC is measured with the quickest client that there is, as the gateway is (`gateway/__main__.py`).
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")

import httpx
from grpc import aio

from bench.gateway.clients import GrpcClient, HttpClient, crowd, open_loop
from bench.gateway.litellm import running_litellm, version_of
from bench.gateway.llama_router import LlamaClient, running_router
from bench.gateway.processes import Bench, Cores, own_cores, processor_s, running_gateway
from bench.gateway.summary import of_peer, of_tls, percentiles, summary
from bench.gateway.table import table
from bench.machine import ROOT, describe_commit, describe_machine, load_average

# LiteLLM ends a stream that repeats one chunk a hundred times.
_PEER_TOKENS = 90
# As published by their makers, on other machines: no comparison, only an order of magnitude.
PUBLISHED = {
    "LiteLLM proxy": {
        "added_p50_ms": 2, "added_p95_ms": 8, "added_p99_ms": 13, "requests_per_s": 1170,
        "on": "4 instances of 4 CPUs each, not streamed",
        "source": "docs.litellm.ai/docs/benchmarks",
    },
}  # fmt: skip


def main() -> int:
    """Measure, print, write."""
    options = _options()
    load_before = load_average()
    cores = own_cores()
    gc.disable()  # a pause of the clients is none of the gateway
    with ExitStack() as running:
        benches = {"gateway": running.enter_context(running_gateway(cores))}
        if options.tls:
            benches["tls"] = running.enter_context(running_gateway(cores, tls=True))
        figures = asyncio.run(_measure(benches, options))
    figures["peers"], figures["peers_failed"] = _measure_peers(options, cores)
    figures["summary"]["peers"] = {name: of_peer(peer) for name, peer in figures["peers"].items()}
    outcome = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "load_average_before": load_before,
        "options": {
            name: value for name, value in vars(options).items() if name not in ("out", "litellm", "llama_server")
        },
        "cores": {"gateway": cores.gateway, "runner": cores.runner, "clients": cores.clients},
        "published_by_others": PUBLISHED,
        **figures,
    }
    path = Path(options.out) / f"{datetime.now(UTC):%Y-%m-%d}-gateway-relay.json"
    path.write_text(json.dumps(outcome, indent=1) + "\n")
    print(table(outcome["summary"]), f"\n{path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each open loop")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second")
    parser.add_argument("--tls", action="store_true", help="measure a gateway with mutual TLS to the cluster, too")
    parser.add_argument("--answer", type=int, default=8, help="tokens of an answer in the open loop")
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64], help="answers at once")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of each of those")
    parser.add_argument("--turns", type=int, default=1, help="how often each number of them is measured in a round")
    parser.add_argument(
        "--litellm", type=Path, help="a virtual environment with litellm[proxy], to be measured as well"
    )
    parser.add_argument(
        "--llama-server", type=Path, default=next(iter(sorted((ROOT / ".peers").glob("*/bin/llama-server"))), None),
        help="measured as a router if it is there (tools/peers/build_llama_server.sh)",
    )  # fmt: skip
    parser.add_argument("--llama-rate", type=float, default=20.0, help="requests a second that it is asked for")
    parser.add_argument("--litellm-rate", type=float, default=20.0, help="requests a second that it is asked for")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"))
    return parser.parse_args()


async def _measure(benches: dict[str, Bench], options: argparse.Namespace) -> dict[str, Any]:
    clients = {name: _client_of(HttpClient, bench.http) for name, bench in benches.items()}
    plain = benches["gateway"]
    rounds: list[dict[str, Any]] = []
    async with aio.insecure_channel(plain.runner) as channel:
        loops = [("direct", plain, GrpcClient(channel).ask)]
        loops += [(name, bench, clients[name].ask) for name, bench in benches.items()]
        for _, _, ask in loops:  # warm up: templates, connections, code
            await open_loop(ask, per_second=100, duration_s=2, tokens=options.answer)
        for _ in range(options.rounds):
            loops.reverse()  # what comes first has an advantage, or not: each does half of the times
            entry: dict[str, Any] = {}
            for name, bench, ask in loops:
                cpu_s, others_s = processor_s(bench.gateway_pid), _others_cpu_s(bench)
                timed = await open_loop(ask, per_second=options.rate, duration_s=options.seconds, tokens=options.answer)
                entry[name] = percentiles(timed) | {
                    "gateway_core_share": round((processor_s(bench.gateway_pid) - cpu_s) / options.seconds, 3),
                    "runner_and_clients_core_share": round((_others_cpu_s(bench) - others_s) / options.seconds, 3),
                }
            for turn in range(options.turns):
                for streams in options.streams:
                    # The machine's speed changes within seconds, so each relay is compared with the next one.
                    for name in list(benches)[:: 1 if turn % 2 else -1]:
                        relay = await _relay(clients[name], benches[name].gateway_pid, streams, options.tokens)
                        entry.setdefault("relay" if name == "gateway" else f"{name}_relay", []).append(relay)
            rounds.append(entry)
            print(json.dumps(entry), flush=True)
    figures: dict[str, Any] = {"rounds": rounds, "summary": summary(rounds, options.rate)}
    if "tls" in benches:
        figures["summary"]["tls"] = of_tls(rounds)
        figures["summary"]["holds"] |= figures["summary"]["tls"]["holds"]
    return figures


def _measure_peers(options: argparse.Namespace, cores: Cores) -> tuple[dict[str, Any], dict[str, str]]:
    """Measure each proxy that runs here in the gateway's place; return figures, and the errors of others."""
    wanted: dict[str, Callable[[], dict[str, Any]]] = {}
    if options.llama_server is not None:
        wanted["llama-server router"] = lambda: _measure_router(options, cores)
    if options.litellm is not None:
        wanted[f"LiteLLM {version_of(options.litellm)}"] = lambda: _measure_litellm(options, cores)
    peers: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name, measure in wanted.items():
        try:
            peers[name] = measure()
        except (OSError, httpx.HTTPError) as error:  # a timeout is one, too
            failed[name] = repr(error)[:500]
            print(f"{name}: {failed[name]}", flush=True)
    return peers, failed


def _measure_router(options: argparse.Namespace, cores: Cores) -> dict[str, Any]:
    with running_router(options.llama_server, core=cores.gateway, other_core=cores.runner) as (proxy, upstream, pid):
        clients = _client_of(LlamaClient, proxy), _client_of(LlamaClient, upstream)
        return asyncio.run(_measure_peer(*clients, pid, options.llama_rate, options))


def _measure_litellm(options: argparse.Namespace, cores: Cores) -> dict[str, Any]:
    running = running_litellm(options.litellm, python=sys.executable, core=cores.gateway, other_core=cores.runner)
    with running as (proxy, upstream, pid):
        clients = _client_of(HttpClient, proxy), _client_of(HttpClient, upstream)
        return asyncio.run(_measure_peer(*clients, pid, options.litellm_rate, options))


def _client_of(client: type[HttpClient], address: str) -> HttpClient:
    host, _, port = address.rpartition(":")
    return client(host, int(port))


async def _measure_peer(
    proxy: HttpClient, upstream: HttpClient, pid: int, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Put the same load on both sides of a proxy, at a rate that it can bear."""
    figures: dict[str, Any] = {"rate": rate}
    cpu_s = 0.0
    for name, client in (("direct", upstream), ("proxy", proxy)):
        await open_loop(client.ask, per_second=10, duration_s=2, tokens=options.answer)
        cpu_s = processor_s(pid, alone=True)
        timed = await open_loop(client.ask, per_second=rate, duration_s=options.seconds, tokens=options.answer)
        figures[name] = percentiles(timed)
        cpu_s = processor_s(pid, alone=True) - cpu_s
    figures["cpu_ms_per_request"] = round(1000 * cpu_s / (rate * options.seconds), 3)
    figures["relay"] = await _relay(proxy, pid, options.streams[0], min(options.tokens, _PEER_TOKENS), alone=True)
    return figures


async def _relay(client: HttpClient, pid: int, streams: int, tokens: int, *, alone: bool = False) -> dict[str, Any]:
    """As many tokens as the gateway can pass on, and what each costs it."""
    cpu_s = processor_s(pid, alone=alone)
    outcomes = await crowd(client.ask, streams=streams, tokens=tokens, rate=0)
    cpu_s = processor_s(pid, alone=alone) - cpu_s
    count = sum(one.tokens for one in outcomes.timed)
    return {
        "streams": streams,
        "failed": outcomes.failed,
        "tokens": count,
        "tokens_per_s": round(count / max(one.whole_s for one in outcomes.timed)),
        "tokens_per_cpu_s": round(count / cpu_s),
    }


def _others_cpu_s(bench: Bench) -> float:
    """Processor time of the runner and of the clients: near a whole core they are what is slow."""
    return processor_s(bench.runner_pid, alone=True) + processor_s(os.getpid(), alone=True)


if __name__ == "__main__":
    sys.exit(main())

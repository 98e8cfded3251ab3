"""First token of honest constrained requests beside as many hostile ones: `python -m bench.constrained`.

Two tenants of a real cluster. The honest one asks alone first, then at the same rate while the hostile one sends
schemas that are refused, or that take as long to compile as they can. No text is sent twice but the honest tenant's
usual ones.
"""

import argparse
import asyncio
import contextlib
import io
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

from bench.machine import ROOT, describe_commit, describe_machine, load_average
from bench.servers import RunningServer, Sizes, running_cluster
from bench.stream_client import BadAnswer, stream_chat
from cli.commands.keys import create

# Bar: how much later the first token of an honest request may come.
RATIO_MAX = 1.5
_WARM_UP = 40
_USUAL = 10  # schemas that the honest tenant sends again and again; every fourth request has a new one
_QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}


def main() -> int:
    """Measure, print, write; 1 if the bar is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves through the cluster's clean-up
    options = _options()
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        keys = Path(directory) / "keys.json"
        honest, hostile = (_new_key(tenant, keys) for tenant in ("honest", "hostile"))
        sizes = Sizes(slots=options.slots, context_tokens=1024)
        with running_cluster(ROOT / "models", sizes, PUNA_API_KEYS_FILE=str(keys)) as cluster:
            figures = asyncio.run(_measure(cluster, honest, hostile, options))
    ratio = figures["beside"]["first_token_p99_ms"] / figures["alone"]["first_token_p99_ms"]
    figures |= {"p99_ratio": round(ratio, 2), "p99_ratio_max": RATIO_MAX, "load_average_after": load_average()}
    outcome = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "load_average_before": before,
        "options": {name: value for name, value in vars(options).items() if name != "out"},
        **figures,
    }
    path = Path(options.out) / f"{datetime.now(UTC):%Y-%m-%d}-constrained.json"
    path.write_text(json.dumps(outcome, indent=1) + "\n")
    print(json.dumps(figures, indent=1), f"\n{path}")
    return 0 if ratio <= RATIO_MAX else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000, help="of each tenant")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, of each tenant")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8, help="of an honest answer")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"))
    return parser.parse_args()


def _new_key(tenant: str, file: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        create({"owner": tenant, "tenant": tenant, "scopes": ["infer", "models:read"]}, file, as_json=True)
    key: str = json.loads(printed.getvalue())["key"]
    return key


async def _measure(cluster: RunningServer, honest: str, hostile: str, options: argparse.Namespace) -> dict[str, Any]:
    numbers = iter(range(10**9))

    async def ask() -> float:
        body = _QUESTION | {"max_tokens": options.tokens, "stream": True, "response_format": _honest(next(numbers))}
        body |= {"stream_options": {"include_usage": True}}
        result = await stream_chat(cluster.host, cluster.port, body, key=honest)
        return result.first_token_s - result.sent_s

    await _open_loop(ask, rate=options.rate, count=_WARM_UP)
    alone = await _open_loop(ask, rate=options.rate, count=options.requests)
    url = f"http://{cluster.host}:{cluster.port}/v1/chat/completions"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
        # The start of this process, and the making of bodies, are no part of what a gateway suffers.
        await asyncio.wrap_future(elsewhere.submit(_prepare, options.requests))
        attacks = asyncio.wrap_future(elsewhere.submit(_attack, url, hostile, options.rate))
        beside = await _open_loop(ask, rate=options.rate, count=options.requests)
        statuses = await attacks
    return {"alone": alone, "beside": beside, "hostile_statuses": statuses}


_bodies: list[bytes] = []  # of the attacks, in their process


def _prepare(count: int) -> None:
    _bodies[:] = (json.dumps(_QUESTION | {"max_tokens": 4} | _hostile(number)).encode() for number in range(count))


def _attack(url: str, key: str, rate: float) -> Counter[str]:
    """Send hostile requests from a process of their own, so that they cost the honest client no time.

    They come a little more often than honest ones, so at all distances from them, as of independent senders.
    """
    return asyncio.run(_attack_all(url, key, rate=rate * 1.02))


async def _attack_all(url: str, key: str, *, rate: float) -> Counter[str]:
    bodies, statuses = iter(_bodies), Counter[str]()
    # From an address of its own: a gateway takes so many connections of each.
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2", limits=httpx.Limits(max_connections=None))
    async with httpx.AsyncClient(headers={"x-api-key": key}, timeout=60, transport=transport) as client:

        async def attack() -> float:
            started_s = time.perf_counter()
            answer = await client.post(url, content=next(bodies))
            statuses[str(answer.status_code)] += 1
            return time.perf_counter() - started_s

        await _open_loop(attack, rate=rate, count=len(_bodies))
    return statuses


async def _open_loop(ask: Callable[[], Awaitable[float]], *, rate: float, count: int) -> dict[str, Any]:
    """Send requests at a rate, whatever becomes of them."""
    started_s = time.perf_counter()
    running = []
    for number in range(count):
        await asyncio.sleep(max(0.0, started_s + number / rate - time.perf_counter()))
        running.append(asyncio.ensure_future(ask()))
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    times_s = sorted(outcome for outcome in outcomes if isinstance(outcome, float))
    errors = (outcome for outcome in outcomes if isinstance(outcome, BadAnswer | httpx.HTTPError | OSError))
    failed = Counter(str(error).partition("\r\n")[0][:80] for error in errors)
    assert len(times_s) + failed.total() == count, [one for one in outcomes if isinstance(one, BaseException)][:1]
    at = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        "answered": len(times_s),
        "failed": failed,
        **{
            f"first_token_{name}_ms": round(1000 * times_s[int(share * (len(times_s) - 1))], 1)
            for name, share in at.items()
        },
    }


def _honest(number: int) -> dict[str, Any]:
    name = f"new{number}" if number % 4 == 0 else f"usual{number % _USUAL}"
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"}, "age": {"type": "integer"}, "tags": {"items": {"type": "string"}}},
        "required": [name, "age"],
    }
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _hostile(number: int) -> dict[str, Any]:
    """Return the fields of one of four attacks."""
    kinds: tuple[Callable[[int], dict[str, Any]], ...] = (_doubling, _wide, _ranges, _alternatives)
    return kinds[number % len(kinds)](number)


def _format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _doubling(number: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {"a0": {"type": "object", "title": str(number)}}
    for level in range(30):
        below = {"$ref": f"#/$defs/a{level}"}
        definitions[f"a{level + 1}"] = {
            "allOf": [below, below, {"properties": {f"p{level}": {"allOf": [below, below]}}}]
        }
    return _format({"$defs": definitions, "$ref": "#/$defs/a30"})


def _wide(number: int) -> dict[str, Any]:
    return _format({"properties": {f"p{number}x{place}": {"type": "string"} for place in range(2_000)}})


def _ranges(number: int) -> dict[str, Any]:
    low = -12_345_678_901 - number
    return _format({"properties": {f"p{place}": {"type": "integer", "minimum": low - place} for place in range(1_900)}})


def _alternatives(number: int) -> dict[str, Any]:
    names = [f"k{number}x{place}" for place in range(1_000)]
    return _format({"oneOf": [{"properties": {name: {"const": name}}, "required": [name]} for name in names]})


if __name__ == "__main__":
    sys.exit(main())

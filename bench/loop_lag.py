"""Lag of a gateway's event loop while hostile chat texts of 8 MiB arrive: `python -m bench.loop_lag`.

The gateway is a process of its own, with a sampler in it: a timer of 2 ms, and how late each call of it is.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import httpx
import uvloop

from bench.gateway.canned import MODEL, control_text, prompt_text
from bench.machine import ROOT, describe_commit, describe_machine, load_average
from bench.servers import wait_until
from cli.cluster.plan import FreePort
from gateway.app import serve
from gateway.settings import GatewaySettings
from gateway.templates.worker import RENDERED_BYTES_MAX

SAMPLE_S = 0.002
TEXT_BYTES = RENDERED_BYTES_MAX - 4096  # with more, the rendered prompt is refused before it is searched
P99_MS_MAX = 20.0
_TEXTS = {
    "idle": "",
    "beginnings of control tokens": "<|reserved_special_token_",
    "control tokens and letters": f"{control_text(1)}a" + "a" * 50,
    "first letters of control tokens": "<",
    "letters": "a",
    "quotes": '"',
    "Chinese letters": "\u732b",
}


def main() -> int:
    """Measure each text with few and with many control tokens; write the report; 1 if the bar was missed."""
    options = _options()
    if options.gateway:
        uvloop.run(_sampled())
        return 0
    report: dict[str, Any] = {
        **describe_commit(),
        "machine": describe_machine(),
        "load_average_before": load_average(),
        "text_bytes": TEXT_BYTES,
        "phases": [],
    }
    for tokens in options.control_tokens:
        with _running(tokens) as (url, gateway):
            for title, unit in _TEXTS.items():
                _next_figures(gateway)
                statuses = asyncio.run(_send(url, unit, options.seconds, options.at_once))
                shown = {"control_tokens": tokens, "texts": title, **_next_figures(gateway), "statuses": statuses}
                print(json.dumps(shown), flush=True)
                report["phases"].append(shown)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    worst_ms = max(phase["lag_p99_ms"] for phase in report["phases"])
    print(f"worst p99 {worst_ms} ms (bar {P99_MS_MAX:g})")
    return 0 if worst_ms <= P99_MS_MAX else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each text")
    parser.add_argument("--at-once", type=int, default=2, help="requests")
    parser.add_argument("--control-tokens", type=int, nargs="+", default=[256, 6244])
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{today}-loop-lag.json")
    parser.add_argument("--gateway", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


async def _send(url: str, unit: str, seconds: float, at_once: int) -> dict[str, int]:
    """Send requests one after the other, so many at once; returns how often each status came."""
    if not unit:
        await asyncio.sleep(seconds)
        return {}
    content = unit * (TEXT_BYTES // len(unit.encode())) + prompt_text(1, 0)
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}, ensure_ascii=False).encode()
    statuses: dict[str, int] = {}
    end_s = time.monotonic() + seconds

    async def loop(client: httpx.AsyncClient) -> None:
        while time.monotonic() < end_s:
            answer = await client.post(f"{url}/v1/chat/completions", content=body)
            status = str(answer.status_code)
            statuses[status] = statuses.get(status, 0) + 1

    async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
        await asyncio.gather(*(loop(client) for _ in range(at_once)))
    return statuses


def _next_figures(gateway: "subprocess.Popen[str]") -> dict[str, float]:
    """Return the lag since the last call."""
    assert gateway.stdin is not None
    assert gateway.stdout is not None
    gateway.stdin.write("\n")
    gateway.stdin.flush()
    while not (line := gateway.stdout.readline()).startswith('{"samples"'):
        assert line
    figures: dict[str, float] = json.loads(line)
    return figures


@contextmanager
def _running(control_tokens: int) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run the canned cluster, and a gateway with a sampler in front of it."""
    scheduler, runner, http, grpc = (FreePort().address() for _ in range(4))
    with tempfile.TemporaryFile() as log:
        ports = [scheduler.rpartition(":")[2], runner.rpartition(":")[2], str(control_tokens)]
        canned = subprocess.Popen([sys.executable, "-m", "bench.gateway.canned", *ports], cwd=ROOT, stdout=log)
        environment = {"PUNA_HOST": http, "PUNA_GRPC_HOST": grpc, "PUNA_SCHEDULER_ADDRESS": scheduler}
        gateway = subprocess.Popen(
            [sys.executable, "-m", "bench.loop_lag", "--gateway"],
            cwd=ROOT, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            wait_until(lambda: _serves(f"http://{http}"), what="the gateway")
            yield f"http://{http}", gateway
        finally:
            for process in (gateway, canned):
                process.kill()
                process.wait()


def _serves(url: str) -> bool:
    answer = httpx.get(f"{url}/v1/models", trust_env=False, timeout=5)
    return answer.status_code == httpx.codes.OK and bool(answer.json()["data"])


async def _sampled() -> None:
    """Serve and sample until killed; each line of standard input asks for the figures since the line before."""
    lags_s: list[float] = []
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), _print_figures, sys.stdin, lags_s)
    serving = asyncio.create_task(serve(GatewaySettings.load(), asyncio.Event()))
    while not serving.done():
        expected_s = loop.time() + SAMPLE_S
        await asyncio.sleep(SAMPLE_S)
        lags_s.append(loop.time() - expected_s)
    await serving


def _print_figures(lines: IO[str], lags_s: list[float]) -> None:
    lines.readline()
    ordered = sorted(lags_s) or [0.0]
    at = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    lags = {f"lag_{name}_ms": round(1000 * ordered[int(share * (len(ordered) - 1))], 2) for name, share in at.items()}
    print(json.dumps({"samples": len(lags_s), **lags}), flush=True)
    lags_s.clear()


if __name__ == "__main__":
    sys.exit(main())

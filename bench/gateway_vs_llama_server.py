"""`make bench`: streams through the whole cluster against llama-server of the same build; see METHODOLOGY.md."""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.end_tokens import end_token_ids
from bench.figures import Round, agreeing_shares, summarise_rounds, summarise_streams, table
from bench.machine import ROOT, describe_commit, describe_machine, load_average
from bench.servers import RunningServer, Sizes, loaded_layout, running_cluster, running_llama_server
from bench.stream_client import BadAnswer, StreamResult, stream_chat
from tools.model_zoo import build
from tools.model_zoo.catalogue import shape

CONCURRENCIES = (1, 4, 16)
WARM_UP = 4
OURS, PEER = "puna", "llama-server"
# One topic per stream, so that no two prompts share more than the template's head.
TOPICS = ("rivers", "bread", "clocks", "maps", "glass", "salt", "bridges", "wool", "paper", "stars", "tea", "iron")


def main() -> int:
    """Measure every model, print tables, write one file of raw figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves through the servers' clean-up
    options = _options()
    program = options.llama_server or next(iter(sorted((ROOT / ".peers").glob("llama_cpp-*/bin/llama-server"))), None)
    if program is None:
        print("there is no llama-server; build it with tools/peers/build_llama_server.sh", file=sys.stderr)
        return 1
    outcome: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "options": {name: value for name, value in vars(options).items() if name not in ("llama_server", "out")},
        "models": {},
    }
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="puna-bench-models-") as directory:
            model = _model_file(name, Path(directory))
            figures = asyncio.run(_compare(name, model, program, options))
            outcome["models"][name] = {"model_bytes": model.stat().st_size, **figures}
    path = Path(options.out) / f"{datetime.now(UTC):%Y-%m-%d}-gateway.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"\nraw rounds: {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["demo", "57m"], help="demo, or a shape of tools/model_zoo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--context", type=int, default=1024, help="context of one slot")
    parser.add_argument(
        "--threads", type=int, default=0, help="of llama-server; 0: as many as the cluster chose for itself"
    )
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"))
    parser.add_argument("--llama-server", type=Path, help="default: what tools/peers/build_llama_server.sh built")
    return parser.parse_args()


def _model_file(name: str, directory: Path) -> Path:
    """Return the path of the model, alone in a directory."""
    if name == "demo":
        return Path(shutil.copy(ROOT / "models" / "demo.gguf", directory))
    return build(shape(name), directory)


async def _compare(name: str, model: Path, program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both servers in turn while both run; the other one is idle."""
    sizes = Sizes(slots=max(CONCURRENCIES), context_tokens=options.context)
    banned = end_token_ids(model)
    with running_cluster(model.parent, sizes) as ours:
        body = _body(model.stem, banned, options.tokens)
        await _round(ours, body, 1, seed=-1)
        layout = loaded_layout(ours.home)
        threads = options.threads or layout["threads"]
        with running_llama_server(program, model, sizes, threads=threads) as peer:
            for server in (ours, peer):
                await _round(server, body, WARM_UP, seed=-2)
            rounds, loads = await _measure(ours, peer, body, options.rounds)
    for entry in rounds:
        if set(entry.completion_tokens) != {options.tokens}:
            raise BadAnswer(f"{entry.server} answered with {entry.completion_tokens} tokens, not {options.tokens} each")
    summaries = summarise_rounds(rounds)
    agreeing = agreeing_shares(rounds, OURS, PEER)
    print(f"\n{name}, {options.tokens} tokens each, medians of {options.rounds} rounds")
    print("answers equal: " + ", ".join(f"{share:.0%} at {streams} streams" for streams, share in agreeing.items()))
    print("\n".join(table(summaries, OURS, PEER)), flush=True)
    return {
        "sizes": {"slots": sizes.slots, "context_tokens": sizes.context_tokens, "threads": threads},
        "servers": {server.name: {"command": server.command, "about": server.about} for server in (ours, peer)},
        "layout": layout,
        "equal_answers": agreeing,
        "table": table(summaries, OURS, PEER),
        "load_average_before_each_round": loads,
        "rounds": [entry.as_json() for entry in rounds],
    }


async def _measure(
    ours: RunningServer, peer: RunningServer, body: dict[str, Any], count: int
) -> tuple[list[Round], list[float]]:
    """Every concurrency in every round; who goes first changes with the round."""
    rounds, loads = [], []
    for number in range(count):
        for streams in CONCURRENCIES:
            for server in (ours, peer) if number % 2 == 0 else (peer, ours):
                loads.append(load_average())
                results = await _round(server, body, streams, seed=number)
                rounds.append(summarise_streams(server.name, results))
    return rounds, loads


async def _round(server: RunningServer, body: dict[str, Any], streams: int, *, seed: int) -> list[StreamResult]:
    """So many streams at once. Both servers get the same prompts; no prompt comes twice."""
    bodies = [
        {**body, "messages": [{"role": "user", "content": _prompt(seed, streams, number)}]} for number in range(streams)
    ]
    return list(await asyncio.gather(*(stream_chat(server.host, server.port, one) for one in bodies)))


def _prompt(seed: int, streams: int, number: int) -> str:
    topic, other = TOPICS[number % len(TOPICS)], TOPICS[(number * 5 + seed + 7) % len(TOPICS)]
    return f"Case {seed}-{streams}-{number}. What do {topic} have to do with {other}, and why does it matter to people?"


def _body(model: str, banned: list[int], tokens: int) -> dict[str, Any]:
    """Greedy, and to the last token: the tokens that would end an answer are banned for both."""
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "logit_bias": {str(token): -100 for token in banned},
    }


if __name__ == "__main__":
    sys.exit(main())

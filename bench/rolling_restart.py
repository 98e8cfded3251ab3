"""Every runner of a cluster is restarted in turn while conversations go on: a verdict line for the bar K5.

    python -m bench.rolling_restart [--model 57m] [--conversations 24] [--per-s 0.1]

Two nodes on loopback with the real engine; the model is written by the zoo. The same conversations are held twice:
undisturbed, then while `puna drain --wait` and `puna undrain` take one node after the other out of use. A grammar
allows one text for each answer, so a lost or doubled token changes it. Run it on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import sub
from pathlib import Path
from random import Random
from typing import Any

from bench.machine import describe_machine, load_average
from bench.stream_client import BadAnswer, StreamResult, stream_chat
from bench.verdicts import Verdict, quantile
from tests.e2e.namespaces import Machines, running_stores
from tools.model_zoo import build

GAP_BAR_S = 0.150
NODES = ("a", "b")
SLOTS, CONTEXT_TOKENS = 8, 2048
TURNS, THINK_S = 3, 1.0
PROMPT_WORDS, ANSWER_WORDS = 60, 40
BETWEEN_S = 5.0  # restarts
MOVE_S = 2.0  # states that were brought in so much time around a move are of one restart
CLOCKS_S = time.time() - time.perf_counter()  # between the clock of logs and that of the client


@dataclass(slots=True)
class Talk:
    """Answers of all conversations of one run, by conversation and turn."""

    results: dict[str, StreamResult] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    changed: int = 0  # answers with another text than the grammar's


@dataclass(slots=True)
class Computed:
    """Costs of the restarts. Tokens are prompt tokens that were computed again."""

    restarts: int
    fetched: int  # states
    moved_tokens: int = 0  # of answers that went on at another replica
    retried_tokens: int = 0  # of those that moved before their first token
    later_tokens: int = 0  # of later turns that did not move
    first_tokens: int = 0  # of first turns: the beginning that all conversations share
    gaps_s: list[float] = field(default_factory=list)  # of the streams of answers that went on, at each move
    moved_at_s: list[float] = field(default_factory=list)  # of each of them, Unix time
    over_s: list[float] = field(default_factory=list)  # what is left of each without all that moved with it
    moved_bytes: float = 0.0  # of the mean state
    bytes_per_s: float = 0.0


def words(seed: str, count: int) -> str:
    """Return numbers that belong to one prompt or answer."""
    draw = Random(seed)
    return " ".join(str(draw.randrange(10**5)) for _ in range(count))


async def converse(machines: Machines, model: str, name: str, talk: Talk) -> None:
    """Hold one conversation; it ends with an answer that failed."""
    host, _, port = machines.url.removeprefix("http://").rpartition(":")
    messages: list[dict[str, str]] = []
    for turn in range(TURNS):
        place = f"{name}-{turn}"
        expected = words(f"answer {place}", ANSWER_WORDS)
        messages.append({"role": "user", "content": words(f"prompt {place}", PROMPT_WORDS)})
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": 400,
            "temperature": 0,
            "grammar": f'root ::= "{expected}"',
            "speculative": "off",  # or one call would bring many tokens of the only text there is
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            result = await stream_chat(host, int(port), body, request_id=place)
        except (BadAnswer, OSError) as error:
            talk.failed.append(f"{place}: {type(error).__name__}: {error}"[:300])
            return
        talk.results[place] = result
        talk.changed += result.text != expected
        messages.append({"role": "assistant", "content": expected})
        await asyncio.sleep(THINK_S)


async def converse_all(machines: Machines, model: str, per_s: float, conversations: int) -> Talk:
    """Begin conversations at random times, whatever becomes of those before."""
    draw, talk, tasks = Random(5), Talk(), []
    for number in range(conversations):
        tasks.append(asyncio.create_task(converse(machines, model, f"c{number}", talk)))
        await asyncio.sleep(draw.expovariate(per_s))
    await asyncio.gather(*tasks)
    return talk


async def puna(machines: Machines, *arguments: str) -> str:
    """Run a command of the operator and return its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        env={**os.environ, "PUNA_HOST": machines.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def restart_all(machines: Machines, is_over: asyncio.Event) -> None:
    """Take the node of the runner out of use, and back, until the event is set; print each restart."""
    while not is_over.is_set():
        await asyncio.sleep(BETWEEN_S)
        for node in sorted({node for node, _ in await asyncio.to_thread(machines.runners)}):
            began_s = time.perf_counter()
            await puna(machines, "drain", node, "--wait")
            await puna(machines, "undrain", node)
            print(f"node {node} was drained for {time.perf_counter() - began_s:.1f} s", flush=True)


def logged(files: list[Path], event: str) -> list[dict[str, Any]]:
    """Return the lines of an event, the oldest first."""
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines() if event in line]
    return sorted((json.loads(line) for line in lines if line.startswith("{")), key=lambda one: str(one["timestamp"]))


def gap_at(pieces_s: Sequence[float], at_s: float) -> float:
    """Return the time between the pieces of a stream before and after a moment; 0 if there were none on one side."""
    before = [one for one in pieces_s if one <= at_s]
    return pieces_s[len(before)] - before[-1] if before and len(before) < len(pieces_s) else 0.0


def compare(directory: Path, undisturbed: Talk, talk: Talk) -> Computed:
    """Read from the logs what the restarts cost."""
    fetched = logged([directory / f"{name}.log" for name in NODES], "states.fetched")
    runners = [file for name in NODES for file in (directory / name).glob("**/runner-*.log")]
    tries = defaultdict(list)
    for line in logged(runners, "request.done"):
        tries[line["request_id"]].append(line["evaluated_tokens"])
    lost = defaultdict(list)
    for line in logged([directory / "gateway.log"], "replica.lost"):
        lost[line["request_id"]].append(line)
    ended = {one.get("client_request_id"): one for one in logged([directory / "gateway.log"], "request.ended")}
    found = Computed(restarts=len({file.name for file in runners}) - 1, fetched=len(fetched))
    for place in talk.results.keys() & undisturbed.results.keys():
        result, usual, request_id = talk.results[place], undisturbed.results[place], ended[place]["request_id"]
        for loss, evaluated_tokens in zip(reversed(lost[request_id]), reversed(tries[request_id]), strict=False):
            if loss["at_token"]:
                found.moved_tokens += evaluated_tokens - 1  # the last token has no state yet
                at_s = _unix_s(loss) - CLOCKS_S
                found.gaps_s.append(gap_at(result.pieces_s, at_s))
                found.moved_at_s.append(at_s + CLOCKS_S)
            else:
                found.retried_tokens += max(0, evaluated_tokens - (usual.prompt_tokens - usual.cached_tokens))
        again = 0 if lost[request_id] else max(0, usual.cached_tokens - result.cached_tokens)
        if place.endswith("-0"):
            found.first_tokens += again
        else:
            found.later_tokens += again
    found.moved_bytes = sum(one["bytes"] for one in fetched) / max(1, len(fetched))
    found.bytes_per_s = sum(one["bytes"] for one in fetched) / max(1e-9, sum(one["s"] for one in fetched))
    for gap_s, at_s in zip(found.gaps_s, found.moved_at_s, strict=True):
        together = sum(one["bytes"] for one in fetched if -MOVE_S < _unix_s(one) - at_s < MOVE_S)
        found.over_s.append(gap_s - (together / found.bytes_per_s if together else 0.0))
    return found


def _unix_s(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(str(line["timestamp"])).timestamp()


async def disturb(machines: Machines, model: str, per_s: float, conversations: int) -> Talk:
    """Hold the conversations while runners are restarted."""
    is_over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(restart_all(machines, is_over))
        talk = await converse_all(machines, model, per_s, conversations)
        is_over.set()
    return talk


def measure(model: str, models: Path, directory: Path, per_s: float, conversations: int) -> Verdict:
    """Hold the conversations on a cluster that is left alone, then on one whose runners are restarted."""
    settings = {
        "PUNA_NUM_PARALLEL": str(SLOTS),
        "PUNA_CONTEXT_LENGTH": str(CONTEXT_TOKENS),
        "PUNA_KEEP_ALIVE": "-1",
    }
    talks = []
    for name, hold in (("undisturbed", converse_all), ("restarted", disturb)):
        home = directory / name
        home.mkdir()
        with running_stores(home, names=NODES, models=models, settings=settings) as machines:
            asyncio.run(converse(machines, model, "warm", Talk()))  # loads the model
            talks.append(asyncio.run(hold(machines, model, per_s, conversations)))
    undisturbed, talk = talks
    found = compare(home, undisturbed, talk)
    failed = undisturbed.failed + talk.failed
    longest = [max(map(sub, one.pieces_s[1:], one.pieces_s)) for one in undisturbed.results.values()]
    over_s, usual_s = quantile(found.over_s, 0.99), quantile(longest, 0.99)
    again = found.moved_tokens + found.retried_tokens + found.later_tokens + found.first_tokens
    text = (
        f"{found.restarts} restarts, {len(talk.results)} answers, {len(found.gaps_s)} moves, "
        f"{len(failed)} failed {failed[:1]}, {talk.changed} with a lost or doubled token, prompt tokens computed again "
        f"{again} ({found.moved_tokens} of answers that moved, {found.retried_tokens} of those that moved before their "
        f"first token, {found.later_tokens} of later turns, {found.first_tokens} of first ones), gap p50 "
        f"{quantile(found.gaps_s, 0.5) * 1000:.0f} ms, p99 {quantile(found.gaps_s, 0.99) * 1000:.0f} ms; without the "
        f"states that moved at once, of {found.moved_bytes / 2**20:.1f} MiB at {found.bytes_per_s / 2**20:.0f} MiB/s, "
        f"p50 {quantile(found.over_s, 0.5) * 1000:.0f} ms, p99 {over_s * 1000:.0f} ms (bar {GAP_BAR_S * 1000:.0f}); "
        f"longest without moves, p99, {usual_s * 1000:.0f} ms, "
        f"load {load_average()}"
    )
    is_whole = not failed and not talk.changed and not again
    return Verdict("K5", text, is_whole and found.restarts >= len(NODES) and bool(found.gaps_s) and over_s <= GAP_BAR_S)


def main() -> int:
    """Print the verdict; 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="57m", help="of the zoo")
    parser.add_argument("--conversations", default=24, type=int, help="of three answers each")
    parser.add_argument(
        "--per-s", default=0.1, type=float, help="conversations that begin per second; one node has to carry them"
    )
    parser.add_argument("--keep", type=Path, help="directory that gets the logs, empty")
    args = parser.parse_args()
    print(f"machine: {describe_machine()}")
    with tempfile.TemporaryDirectory(prefix="puna-restart-") as name:
        directory = args.keep or Path(name)
        models = directory / "models"
        models.mkdir(parents=True)
        path = build(args.model, models)
        verdict = measure(path.stem, models, directory, args.per_s, args.conversations)
    print(verdict.line())
    return 0 if verdict.reached else 1


if __name__ == "__main__":
    sys.exit(main())

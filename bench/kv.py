"""Saved conversations against computing them again: verdict lines for the bars K1, K2, K3, K4, K7, K8 and K9.

    python -m bench.kv [--model 1b] [--tokens 4096] [--bars K1,K2,K3,K4,K7,K8,K9]

Real engines, the real store of a node and its disk tier, in one process, for K2 two hosts with their runners; models
are written by the zoo. Run it on a machine that does nothing else: K1, K2, K4 and K9 compare wall times. K4 needs root
and the blkio controller of cgroup v1. K5 and K6 need a cluster under load: `bench.rolling_restart` and
`bench.bands`.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.kv_routing import measure_other_node, measure_routing, measure_slow_disk
from bench.machine import ROOT, describe_machine
from bench.verdicts import Setup, Verdict, quantile
from runner.core.sequence.text_stream import Release
from runner.core.states.chain import BLOCK_INPUTS
from runner.engine.contract.engine import Sampled, StepReport
from runner.host.states.store import NodeStates
from runner.serve.streams import Stream
from tests.integration.host import node
from tests.integration.runner import harness
from tests.integration.runner.harness import Answer, Harness
from tests.integration.runner.saved_states import connected, count
from tests.waiting import until
from tools.model_zoo import build

K1_BAR, K3_BAR, K9_BAR_S = 0.05, 0.05, 0.005
TURNS, TURN_TOKENS = 6, 40
SAVES = 10
DEADLINE_S = 600.0


async def first_token(engine: Harness, prompt: list[int]) -> tuple[float, Answer]:
    """Return the seconds to the first token of an answer of one, and the answer."""
    began_s = time.monotonic()
    answer = await engine.ask(prompt, max_tokens=1, ignore_eos=True)
    return time.monotonic() - began_s, answer


async def measure_restores(setup: Setup) -> list[Verdict]:
    """K1: first token after a swap of the runner, and after a restart of the host, against evaluating it."""
    prompt, states = setup.prompt(1), setup.node()
    async with connected(states, setup.directory, setup.model, **setup.options()) as engine:
        await first_token(engine, setup.prompt(2, 300))  # speeds are known, pages are touched
        cold_s, _ = await first_token(engine, prompt)
        await until(lambda: count(states) >= 2, what="the state is saved", deadline_s=DEADLINE_S)
    async with connected(states, setup.directory, setup.model, **setup.options()) as engine:
        swap_s, swapped = await first_token(engine, prompt)
    await states.close()
    later = setup.node()
    await later.load()
    async with connected(later, setup.directory, setup.model, **setup.options()) as engine:
        restart_s, restarted = await first_token(engine, prompt)
    await later.close()
    return [
        Verdict(
            "K1",
            f"{what}: first token after {warm_s * 1000:.0f} ms, cold {cold_s * 1000:.0f} ms: "
            f"{warm_s / cold_s:.3f} (bar {K1_BAR}), {answer.cached_tokens} of {len(prompt)} tokens restored",
            warm_s / cold_s <= K1_BAR,
        )
        for what, warm_s, answer in (("swap", swap_s, swapped), ("restart of the host", restart_s, restarted))
    ]


async def measure_alternation(setup: Setup) -> list[Verdict]:
    """K3: two agents take turns on a device that holds one model: prompt tokens that are computed again."""
    states, again, total = setup.node(), 0, 0
    talks = {domain: setup.prompt(seed, setup.tokens // 2) for seed, domain in ((3, b"one"), (4, b"two"))}
    known = dict.fromkeys(talks, 0)
    for turn in range(TURNS):
        for domain, said in list(talks.items()):
            talk = said + setup.prompt(100 + turn, TURN_TOKENS)
            options = setup.options(slots=1)
            async with connected(states, setup.directory, setup.model, domain=domain, **options) as engine:
                answer = await engine.ask(talk, max_tokens=8, ignore_eos=True)
            if known[domain]:
                total += known[domain]
                again += max(0, known[domain] - answer.cached_tokens)
            known[domain] = len(talk)
            talks[domain] = talk + answer.ids
    await states.close()
    share = again / total
    return [Verdict("K3", f"{again} of {total} known prompt tokens computed again: {share:.3f}", share <= K3_BAR)]


async def measure_steps(setup: Setup) -> list[Verdict]:
    """K9: steps of one sequence while states of another are saved, against as many after each save."""
    states, stamps, during, quiet = setup.node(), list[float](), list[float](), list[float]()
    options = {**setup.options(), "context": setup.tokens + SAVES * BLOCK_INPUTS + 1024, "report_interval_s": 0.0}
    async with connected(states, setup.directory, setup.model, **options) as engine:
        other = engine.open(setup.prompt(5, 64), max_tokens=setup.tokens, ignore_eos=True)

        def note(report: StepReport) -> None:
            if any(isinstance(one, Sampled) and one.sequence_id == other.id for one in report.outcomes):
                stamps.append(time.monotonic())

        engine.on_step = note
        reading = asyncio.create_task(_read(engine, other))  # without a reader the engine pauses it
        prompt = setup.prompt(6)
        for seed in range(SAVES):
            await engine.ask(prompt, max_tokens=2, ignore_eos=True)
            begun = len(stamps)
            is_saved = partial(_holds, states, len(prompt))
            await until(is_saved, what="the state is saved", deadline_s=DEADLINE_S)
            saved = len(stamps)
            during += gaps(stamps[begun:saved])  # not of the calls that it shares with the other one
            await engine.until(lambda: len(stamps) >= 2 * saved - begun or reading.done())  # noqa: B023  # awaited here
            quiet += gaps(stamps[saved:])
            prompt += setup.prompt(100 + seed, BLOCK_INPUTS)
        reading.cancel()
        engine.streams.close(other)
    await states.close()
    added_s = quantile(during, 0.99) - quantile(quiet, 0.99)
    text = f"p99 of {len(during)} steps during {SAVES} saves {added_s * 1000:+.1f} ms against {len(quiet)} after"
    return [Verdict("K9", text, added_s <= K9_BAR_S)]


async def _read(engine: Harness, stream: Stream) -> None:
    async for event in stream.events():
        if isinstance(event, Release):
            engine.streams.drained(stream)


def _holds(states: NodeStates, tokens: int) -> bool:
    return any(kept.record.entry.inputs >= tokens for kept in states._kept.values())


def gaps(stamps: list[float]) -> list[float]:
    """Return the seconds between each moment and the next."""
    return [later - earlier for earlier, later in pairwise(stamps)]


def measure_damage() -> list[Verdict]:
    """K8: the test of ten thousand damaged and foreign states."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/runner/host/states/test_damaged_states.py"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (run.stdout.strip().splitlines() or ["no output"])[-1]
    return [Verdict("K8", f"10,000 damaged and foreign states: {last}", run.returncode == 0)]


MEASURES = {
    "K1": measure_restores,
    "K2": measure_other_node,
    "K3": measure_alternation,
    "K4": measure_slow_disk,
    "K7": measure_routing,
    "K9": measure_steps,
}


def main() -> int:
    """Print a line for each bar; 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1b", help="of the zoo")
    parser.add_argument("--tokens", default=4096, type=int, help="of the conversation")
    parser.add_argument("--bars", default=",".join([*MEASURES, "K8"]), help="which ones")
    args = parser.parse_args()
    print(f"machine: {describe_machine()}")
    verdicts: list[Verdict] = []
    harness.DEADLINE_S = node.DEADLINE_S = DEADLINE_S  # those of tests are for tiny models
    with tempfile.TemporaryDirectory(prefix="puna-kv-") as name:
        model = build(args.model, Path(name))
        for bar in args.bars.split(","):
            directory = Path(name) / bar
            directory.mkdir()
            setup = Setup(model, directory, args.tokens)
            found = measure_damage() if bar == "K8" else asyncio.run(MEASURES[bar](setup))
            for verdict in found:
                print(verdict.line(), flush=True)
            verdicts += found
    return 0 if all(verdict.reached is not False for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

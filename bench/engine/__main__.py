"""`make bench-engine`: the runner's gRPC against llama-server's HTTP, same build, same file, same threads.

Prints a table and writes bench/results/<date>-engine.json. See bench/METHODOLOGY.md.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.engine.cases import DEFAULT_MODELS, GRAMMAR, SLOTS, Case, Kind, ModelPlan, choose_plans
from bench.engine.figures import Round, compare, ratios
from bench.engine.measure import BothServers, Measurement, equal_answers, load_round, measured_round
from bench.engine.models import ModelMissing, cache_folder, layer_count, model_file
from bench.engine.servers import OURS, PEER, Sizes, find_llama_server, running_llama_server, running_runner
from bench.engine.streams import Ask
from bench.engine.table import comparison_table, target_table
from bench.engine.targets import judge
from bench.machine import ROOT, describe_commit, describe_machine


def main() -> int:
    """Measure every chosen model; print as it goes, write everything at the end. 1: something could not be measured."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves through the servers' clean-up
    options = _options()
    program = options.llama_server or find_llama_server()
    if program is None:
        print("there is no llama-server; build it with tools/peers/build_llama_server.sh", file=sys.stderr)
        return 1
    try:
        plans = choose_plans(options.models, options.cases)
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    files: dict[str, Path] = {}
    skipped: list[str] = []
    for plan in plans:
        try:
            files[plan.name] = model_file(plan.name, options.model_folder)
        except ModelMissing as missing:
            skipped.append(f"{plan.name}: skipped: {missing}")
            print(skipped[-1], file=sys.stderr)
    if not files:
        return 0
    began_s = time.monotonic()
    outcome: dict[str, Any] = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "options": {
            "rounds": options.rounds,
            "models": options.models,
            "cases": options.cases,
            "device": options.device,
        },
        "servers": {},
        "notes": skipped,
    }
    rounds: list[Round] = []
    for plan in (one for one in plans if one.name in files):
        measured = asyncio.run(_measure(plan, files[plan.name], program, options))
        rounds += measured.rounds
        outcome["servers"][plan.name] = measured.servers
        outcome["notes"] += measured.notes
        comparisons = compare(measured.rounds, ours=OURS, peer=PEER)
        print("\n" + "\n".join(comparison_table(comparisons, ours=OURS, peer=PEER)), flush=True)
    comparisons = compare(rounds, ours=OURS, peer=PEER)
    targets = target_table(judge(comparisons))
    print("\n" + "\n".join([*targets, *outcome["notes"]]))
    outcome |= {
        "wall_s": round(time.monotonic() - began_s, 1),
        "ratios": ratios(comparisons),
        "targets": targets,
        "table": comparison_table(comparisons, ours=OURS, peer=PEER),
        "rounds": [entry.as_json() for entry in rounds],
    }
    path = Path(options.out) / f"{datetime.now(UTC):%Y-%m-%d}-engine.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"\n{outcome['wall_s']:.0f} s; raw rounds: {path}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(DEFAULT_MODELS), help="see bench/engine/cases.py")
    parser.add_argument("--cases", nargs="+", default=[], help="default: all of each model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of both servers; 0: as the runner chooses for itself")
    parser.add_argument("--device", default="", help="an id that `runner probe` lists; default: the CPU")
    parser.add_argument("--out", default=str(ROOT / "bench" / "results"))
    parser.add_argument("--model-folder", type=Path, default=cache_folder(), help="where the models are kept")
    parser.add_argument("--llama-server", type=Path, help="default: what tools/peers/build_llama_server.sh built")
    return parser.parse_args()


async def _measure(plan: ModelPlan, model: Path, program: Path, options: argparse.Namespace) -> Measurement:
    """All rounds of one model. Both servers run all the time; the one that is not asked is idle."""
    sizes = Sizes(
        slots=SLOTS,
        context_tokens=plan.context_tokens,
        threads=options.threads,
        embeddings=plan.embeddings,
        device_id=options.device,
        device_layers=layer_count(model) if options.device else 0,
    )
    measurement = Measurement()
    with ExitStack() as stack:
        ours = stack.enter_context(running_runner(model, sizes))
        peer = stack.enter_context(running_llama_server(program, model, sizes, threads=ours.threads))
        measurement.servers = {server.name: server.about for server in (ours, peer)}
        both = BothServers(ours=ours, peer=peer, model=model)
        await both.warm_up(plan)
        for case in plan.cases:
            if case.grammar and not await _obeys_grammar(both):
                measurement.notes.append(f"{plan.name} {case.name}: this runner takes no grammar; not measured")
                continue
            if case.kind is Kind.LOAD:
                continue
            await _measure_case(plan, case, both, options.rounds, measurement)
        measurement.rounds += both.memory_rounds(plan.name)
    for case in plan.cases:
        if case.kind is Kind.LOAD:
            for number in range(options.rounds):
                measurement.rounds += load_round(plan.name, case.name, number, model, program, sizes, ours.threads)
    return measurement


async def _measure_case(plan: ModelPlan, case: Case, both: BothServers, rounds: int, measurement: Measurement) -> None:
    shares = []
    for number in range(rounds):
        done = await measured_round(plan.name, case, both, number)
        measurement.rounds += done.rounds
        if done.streams:
            shares.append(equal_answers(done))
    if shares and not case.temperature:
        share = sum(shares) / len(shares)
        measurement.notes.append(f"{plan.name} {case.name}: {share:.0%} of the tokens before the first that differs")
    print(f"{plan.name} {case.name}: {rounds} rounds", file=sys.stderr, flush=True)


async def _obeys_grammar(both: BothServers) -> bool:
    """Return True if our runner obeys a grammar, found by one request."""
    ask = Ask(prompt=tuple(range(300, 316)), tokens=8, grammar=GRAMMAR)
    (stream,) = await both.ours.generate([ask])
    return re.fullmatch("[a-z ]*", stream.text) is not None


if __name__ == "__main__":
    sys.exit(main())

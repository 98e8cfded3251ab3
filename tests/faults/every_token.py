"""Break what serves an answer of the real engine after every one of its tokens, and compare the answer.

    make every-token EVERY_TOKEN="--minutes 60"

Goes on where the report in FILE ends. Every kind of answer of `tests.faults.dialects` is lost at each of its tokens by
each fault; what the client reads must be the undisturbed answer: same text, one end, same usage.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import httpx

from bench.machine import ROOT, describe_commit, describe_machine
from protos import inference_pb2_grpc
from tests.cluster import Cluster, start_cluster
from tests.faults.dialects import IMAGE_MODEL, LANES, TEXT_MODEL, Answer, Lane, read
from tests.faults.faults import Killed, Stopped, engine_blocked, verify
from tests.second_host import SecondHost
from tests.waiting import next_look, wait_until
from tools.model_zoo import build_pair

SECOND_NODE = "b"
STEP_S = 0.03  # by default; the engine waits so long with every token, so that a client can act between two of them
FIRST_TOKEN_S_MAX = 0.5  # beyond a step
LEAD_S_MIN = 0.05
LEARNED = 0.5  # of the difference that one round shows
HUNG_S = 150.0
READY_WITHIN_S = 120.0
ANSWERS_PER_ROUND = 20
TRIES_MAX = 8  # for one token; tokens whose text comes together with the next one's are never the last
FAULTS = ("killed", "blocked", "drained", "vanished")


@dataclass
class Tally:
    """Outcomes of the answers that one fault met."""

    rounds: int = 0
    answers: int = 0
    lost: int = 0  # answers whose replica was lost
    not_measured: int = 0  # by the fault: the answer was over, or at another replica
    wrong: list[str] = field(default_factory=list)
    at_tokens: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    tries: Counter[tuple[str, int]] = field(default_factory=Counter)

    def to_json(self, tokens: dict[str, int]) -> dict[str, Any]:
        """Return the figures; `tokens`: of each undisturbed answer."""
        met = {name: sorted(found) for name, found in sorted(self.at_tokens.items())}
        return {
            "rounds": self.rounds,
            "answers": self.answers,
            "lost": self.lost,
            "wrong": self.wrong,
            "at_tokens": met,
            "not_met": {
                name: missing
                for name, count in sorted(tokens.items())
                if (missing := sorted(set(range(count)) - self.at_tokens[name]))
            },
            "tries": {f"{name} {token}": count for (name, token), count in sorted(self.tries.items())},
        }

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> "Tally":
        """Return the tally that a report has."""
        tally = cls(rounds=told["rounds"], answers=told["answers"], lost=told["lost"], wrong=told["wrong"])
        for name, found in told["at_tokens"].items():
            tally.at_tokens[name] = set(found)
        for key, count in told["tries"].items():
            name, _, token = key.rpartition(" ")
            tally.tries[name, int(token)] = count
        return tally


def name_of(lane: Lane) -> str:
    return f"{lane.kind}/{lane.dialect}"


def typed_stub(channel: grpc.aio.Channel) -> "inference_pb2_grpc.InferenceAsyncStub":
    return inference_pb2_grpc.InferenceStub(channel)


class Rig:
    """A cluster of two nodes with a replica of each model on both, and clients of it."""

    def __init__(self, cluster: Cluster, second: SecondHost, *, seed: int, step_s: float) -> None:
        self.cluster = cluster
        self.second = second
        self.step_s = step_s
        self.draw = random.Random(seed)
        self.http = httpx.AsyncClient(base_url=cluster.url, timeout=HUNG_S)
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{cluster.grpc_port}")
        self.stub = typed_stub(self.channel)
        self.log = cluster.home / "logs" / "gateway.log"
        self.undisturbed: dict[Lane, Answer] = {}
        self.tokens: dict[str, int] = {}
        self.first_s: dict[Lane, float] = {}  # from the request to its first token
        self.token_s: dict[Lane, float] = {}
        self.felt_s: dict[str, float] = defaultdict(float)  # from a fault to the last token that its answers had before
        self.tallies = {fault: Tally() for fault in FAULTS}

    async def close(self) -> None:
        await self.http.aclose()
        await self.channel.close()

    async def measure(self, lanes: Iterable[Lane] = LANES) -> None:
        """Place the models on both nodes, and read every answer while nothing breaks."""
        while len(await asyncio.to_thread(self.nodes)) < 2:
            await next_look(0.2)
        for model in (TEXT_MODEL, IMAGE_MODEL):
            wanted = {"replicas_min": 2, "replicas_max": 2}
            (await self.http.put(f"/puna/v1/placements/{model}", json=wanted)).raise_for_status()
        await self.all_ready()
        for _ in range(2):  # the first answers of a runner take longer
            await asyncio.gather(*(self._measure(lane) for lane in lanes))

    async def _measure(self, lane: Lane) -> None:
        answer, began_s = Answer(), time.monotonic()
        reading = asyncio.create_task(read(self.http, self.stub, lane, answer))
        while not reading.done() and not answer.said:
            await next_look()
        first_s = time.monotonic()
        await reading
        assert (bool(answer.said), answer.error, answer.terminals) == (True, "", 1), (lane, answer)
        choices = 2 if lane.kind == "n" else 1
        self.undisturbed[lane] = answer
        self.tokens[name_of(lane)] = count = answer.usage[1] // choices
        # Where the text of several tokens comes at once, the first of it is late. Tools take more steps than tokens.
        self.first_s[lane] = min(first_s - began_s, FIRST_TOKEN_S_MAX + self.step_s)
        self.token_s[lane] = max(self.step_s, (time.monotonic() - began_s - self.first_s[lane]) / max(1, count))

    def nodes(self) -> dict[str, list[dict[str, Any]]]:
        """Runners that serve, by node."""
        with suppress(httpx.HTTPError, KeyError, ValueError):
            answer = httpx.get(f"{self.cluster.url}/puna/v1/nodes", timeout=30)
            return {
                node["id"]: [one for one in node.get("runners", []) if one["state"] in ("ready", "no_slots")]
                for node in answer.json()["nodes"]
                if node["state"] == "ready"
            }
        return {}

    async def all_ready(self) -> None:
        """Return once both nodes are there, and two replicas of each model."""

        def ready() -> bool:
            nodes = self.nodes()
            models = Counter(one["model"] for found in nodes.values() for one in found)
            return len(nodes) == 2 and all(models[f"{name}:latest"] >= 2 for name in (TEXT_MODEL, IMAGE_MODEL))

        await asyncio.to_thread(wait_until, ready, deadline_s=READY_WITHIN_S, what="both nodes serve")

    async def victims(self, *, whole_node: bool) -> tuple[str, list[int]]:
        """Return the node with most answers and its runners, or of each model the runner with most."""
        nodes = await asyncio.to_thread(self.nodes)
        if whole_node:
            node = max(nodes, key=lambda name: (sum(one["slots_busy"] for one in nodes[name]), self.draw.random()))
            return node, [one["pid"] for one in nodes[node]]
        busiest: dict[str, tuple[int, float, int]] = {}
        for one in (one for found in nodes.values() for one in found):
            rank = (one["slots_busy"], self.draw.random(), one["pid"])
            busiest[one["model"]] = max(busiest.get(one["model"], rank), rank)
        return "", [pid for _, _, pid in busiest.values()]

    def missing(self, fault: str) -> list[tuple[Lane, int]]:
        """Tokens after which the fault has not yet met the answer, and may."""
        tally = self.tallies[fault]
        return [
            (lane, token)
            for lane in sorted(self.undisturbed)
            for token in range(self.tokens[name_of(lane)])
            if token not in tally.at_tokens[name_of(lane)] and tally.tries[name_of(lane), token] < TRIES_MAX
        ]

    def choose(self, fault: str) -> list[tuple[Lane, int]]:
        """Choose answers for a round and the token after which each is to be lost; the last ones are not left alone.

        A request waits for a step to end where others are answered; alone its first token comes with its first step.
        """
        missing = self.missing(fault)
        chosen = self.draw.sample(missing, min(len(missing), ANSWERS_PER_ROUND))
        lanes = sorted(self.undisturbed) * bool(chosen)
        others = [(lane, token) for lane in lanes for token in range(1, self.tokens[name_of(lane)])]
        return chosen + self.draw.sample(others, min(len(others), ANSWERS_PER_ROUND - len(chosen)))

    async def run_round(self, fault: str, chosen: Sequence[tuple[Lane, int]]) -> None:
        """Ask, break something when each answer is where it should be, read on, compare, repair."""
        await self.all_ready()
        tally = self.tallies[fault]
        seen_bytes = self.log.stat().st_size
        # The middle between this token and the next one. What is asked for after the fault would go elsewhere.
        leads_s = [
            max(LEAD_S_MIN, self.first_s[lane] + (token - 0.5) * self.token_s[lane] - self.felt_s[fault])
            for lane, token in chosen
        ]
        longest_s = max(leads_s)
        answers = [Answer() for _ in chosen]

        async def ask(lane: Lane, lead_s: float, answer: Answer) -> None:
            await next_look(longest_s - lead_s)
            async with asyncio.timeout(HUNG_S):
                await read(self.http, self.stub, lane, answer)

        asked = [
            asyncio.create_task(ask(lane, lead_s, answer))
            for (lane, _), lead_s, answer in zip(chosen, leads_s, answers, strict=True)
        ]
        await next_look(longest_s)
        node, pids = await self.victims(whole_node=fault in ("drained", "vanished"))
        mend = await getattr(self, f"_{fault}")(node, pids)
        ended = await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.to_thread(mend)
        tally.rounds += 1
        for (lane, token), answer, error in zip(chosen, answers, ended, strict=True):
            if error is not None:
                answer.error = f"hung or broke: {error!r}"
            tally.tries[name_of(lane), token] += 1
            self._compare(tally, lane, answer)
        self._learn(fault, chosen, answers, seen_bytes)
        for model in (TEXT_MODEL, IMAGE_MODEL):  # as an operator who has seen the reason of the crashes
            await self.http.post("/puna/v1/load", json={"model": model})

    def _compare(self, tally: Tally, lane: Lane, answer: Answer) -> None:
        tally.answers += 1
        if difference := answer.differs_from(self.undisturbed[lane]):
            tally.wrong.append(f"{name_of(lane)}: {difference}")

    def _learn(
        self, fault: str, chosen: Sequence[tuple[Lane, int]], answers: Sequence[Answer], seen_bytes: int
    ) -> None:
        """Read from the gateway's log after which token each answer lost its replica, and aim better."""
        with self.log.open("rb") as file:
            file.seek(seen_bytes)
            lines = [json.loads(line) for line in file if line.startswith(b"{") and b'"replica.lost"' in line]
        by_id = {answer.request_id: asked for asked, answer in zip(chosen, answers, strict=True)}
        late: dict[str, int] = {}  # tokens, of each answer that lost its replica
        for line in lines:
            if found := by_id.get(line.get("request_id", "")):
                lane, wanted = found
                self.tallies[fault].at_tokens[name_of(lane)].add(line["at_token"])
                late[line["request_id"]] = line["at_token"] - wanted
        self.tallies[fault].lost += len(late)
        if late:
            # All are late by what the fault takes to be felt; the rest is how long each answer takes to begin.
            common = statistics.median(late.values())
            self.felt_s[fault] += LEARNED * common * self.step_s
            for request_id, tokens in late.items():
                self.first_s[by_id[request_id][0]] -= LEARNED * (tokens - common) * self.step_s

    async def _killed(self, node: str, pids: Sequence[int]) -> Callable[[], None]:
        faults = [Killed(pid) for pid in pids]
        for fault in faults:
            fault.inject()
        for fault in faults:
            await asyncio.to_thread(verify, fault)
        return lambda: None

    async def _blocked(self, node: str, pids: Sequence[int]) -> Callable[[], None]:
        faults = [engine_blocked(pid) for pid in pids]
        for fault in faults:
            fault.inject()
        for fault in faults:
            await asyncio.to_thread(verify, fault)

        def mend() -> None:
            for fault in faults:
                fault.heal()

        return mend

    async def _drained(self, node: str, pids: Sequence[int]) -> Callable[[], None]:
        answer = await self.http.post(f"/puna/v1/nodes/{node}/drain", params={"budget_s": 0})
        assert answer.status_code == httpx.codes.OK, answer.text
        return lambda: self._use_again(node)

    def _use_again(self, node: str) -> None:
        httpx.post(f"{self.cluster.url}/puna/v1/nodes/{node}/undrain", timeout=60).raise_for_status()

    async def _vanished(self, node: str, pids: Sequence[int]) -> Callable[[], None]:
        """All processes of the node stand still: its peers see what they see of a machine that is switched off."""
        host = self.second.pid if node == SECOND_NODE else self.cluster.pid_of("host")
        faults = [Stopped(pid) for pid in (host, *pids)]
        for fault in faults:
            fault.inject()
        for fault in faults:
            await asyncio.to_thread(verify, fault)

        def mend() -> None:
            for fault in faults:
                with suppress(ProcessLookupError):
                    os.kill(fault.pid, signal.SIGKILL)
                fault.heal()
            if node == SECOND_NODE:
                self.second.restart()

        return mend

    def report(self) -> dict[str, Any]:
        """All figures."""
        return {
            **describe_commit(),
            "machine": describe_machine(),
            "tokens": dict(sorted(self.tokens.items())),
            "faults": {fault: tally.to_json(self.tokens) for fault, tally in self.tallies.items()},
        }


@asynccontextmanager
async def running_rig(directory: Path, *, seed: int, step_s: float = STEP_S) -> AsyncIterator[Rig]:
    """Start the cluster; everything is gone afterwards."""
    engine = {"PUNA_ENGINE": "fake", "PUNA_ENGINE_OPTIONS": json.dumps({"real": True, "step_s": step_s})}
    home = directory / "home"
    (home / "models").mkdir(parents=True)
    model, projector = build_pair("mrope", directory)
    projector.rename(home / "models" / f"{IMAGE_MODEL}.mmproj.gguf")
    model.rename(home / "models" / f"{IMAGE_MODEL}.gguf")
    settings = {"PUNA_KEEP_ALIVE": "-1", "PUNA_NUM_PARALLEL": str(ANSWERS_PER_ROUND + 1)}
    cluster = await asyncio.to_thread(start_cluster, home, **engine, **settings)
    try:
        second = SecondHost(cluster, SECOND_NODE, **engine)
        try:
            rig = Rig(cluster, second, seed=seed, step_s=step_s)
            try:
                yield rig
            finally:
                await rig.close()
        finally:
            await asyncio.to_thread(second.stop)
    finally:
        await asyncio.to_thread(cluster.stop)


async def run(
    out: Path,
    *,
    minutes: float,
    seed: int,
    step_s: float,
    faults: Sequence[str],
    lanes: Sequence[Lane],
    told: Mapping[str, Any],
) -> bool:
    """Run until every token was met or the time is over. Return True if no answer was wrong."""
    end_s = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="puna-every-token-") as directory:
        async with running_rig(Path(directory), seed=seed, step_s=step_s) as rig:
            rig.tallies |= {fault: Tally.of_json(figures) for fault, figures in told.get("faults", {}).items()}
            rig.tokens |= told.get("tokens", {})
            await rig.measure(lanes)
            while time.monotonic() < end_s and any(rig.missing(fault) for fault in faults):
                for fault in faults:
                    if chosen := rig.choose(fault):
                        began_s = time.monotonic()
                        await rig.run_round(fault, chosen)
                        tally = rig.tallies[fault]
                        print(
                            f"{fault}: round {tally.rounds} took {time.monotonic() - began_s:.1f} s, {tally.lost} of "
                            f"{tally.answers} answers lost their replica, {len(tally.wrong)} wrong, "
                            f"{len(rig.missing(fault))} tokens left",
                            flush=True,
                        )
                        await asyncio.to_thread(out.write_text, json.dumps(rig.report(), indent=1) + "\n")
            return not any(tally.wrong for tally in rig.tallies.values())


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    today = datetime.now(UTC).date().isoformat()
    out = ROOT / "bench" / "results" / f"{today}-every-token.json"
    parser.add_argument("--out", type=Path, default=out, help="the report, JSON; read first if it exists")
    parser.add_argument("--minutes", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=STEP_S, help="a longer one meets more of the tokens it aims at")
    parser.add_argument("--fault", choices=FAULTS, action="append", default=[])
    parser.add_argument("--kind", action="append", default=[])
    asked = parser.parse_args()
    lanes = [lane for lane in LANES if not asked.kind or lane.kind in asked.kind]
    told = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    good = asyncio.run(
        run(
            asked.out,
            minutes=asked.minutes,
            seed=asked.seed,
            step_s=asked.step_s,
            faults=asked.fault or FAULTS,
            lanes=lanes,
            told=told,
        )
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

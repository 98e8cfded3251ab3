"""Three bands of two tenants at three times the requests that a replica can serve: a verdict line for the bar K6.

    python -m bench.bands [--model 57m] [--seconds 25] [--rounds 6]

A whole cluster with the real engine; the model is written by the zoo. The same arrivals are sent three times in turns,
forth and back: those of the high band alone, to an empty cluster, so that its requests wait for each other as they do
beside others; all of them with keys of one band; and with keys of three. Run it on a machine that does nothing else; it
takes 9 minutes.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

from bench.machine import describe_machine, load_average
from bench.overload import make_key
from bench.servers import RunningServer, Sizes, running_cluster
from bench.stream_client import BadAnswer, StreamResult, stream_chat
from bench.verdicts import Verdict, quantile
from common.spec.bands import Band
from tests.cluster import metric_sum
from tools.model_zoo import build

FIRST_TOKEN_BAR, GOODPUT_BAR = 1.1, 0.97
OVERLOAD = 3.0
SHARES = {Band.HIGH: 0.1, Band.NORMAL: 0.4, Band.LOW: 0.5}  # of all requests
TENANTS = ("ada", "bob")
ALL = frozenset(Band)
SIZES = Sizes(slots=4, context_tokens=1024)
ANSWER_TOKENS, PROMPT_WORDS = 48, 120
WARM_UP = 3  # requests
CAPACITY_S = 8.0


@dataclass(slots=True)
class Outcome:
    """Answers of one band. Refusals are the server's right at such a load."""

    first_s: list[float] = field(default_factory=list)
    tokens_in_time: float = 0.0  # that came while requests were sent; every answer is read to its end
    answered: int = 0
    refused: int = 0
    lost_tokens: int = 0
    failed: list[str] = field(default_factory=list)


class Client:
    """Sends requests with one key; no two prompts begin alike."""

    def __init__(self, server: RunningServer, model: str, key: str, draw: Random) -> None:
        self._server, self._model, self._key, self._draw = server, model, key, draw

    async def one(self) -> StreamResult:
        """Return an answer. Raises: BadAnswer."""
        words = " ".join(str(self._draw.randrange(10**6)) for _ in range(PROMPT_WORDS // 2))
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": words}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "grammar": "root ::= [a-z ] root",  # no answer ends before its last token
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await stream_chat(self._server.host, self._server.port, body, key=self._key)


async def measure_capacity(client: Client) -> float:
    """Return the answers per second of as many clients as there are slots."""
    end_s, answered = time.perf_counter() + CAPACITY_S, 0

    async def ask() -> None:
        nonlocal answered
        while time.perf_counter() < end_s:
            await client.one()
            answered += 1

    await asyncio.gather(*(ask() for _ in range(SIZES.slots)))
    return answered / CAPACITY_S


async def send(
    clients: dict[tuple[str, Band], Client],
    outcomes: dict[Band, Outcome],
    *,
    per_s: float,
    seconds: float,
    seed: int,
    bands: Container[Band],
) -> None:
    """Send requests at random times, whatever becomes of those before. `bands`: which of the arrivals are sent."""
    draw, tasks = Random(seed), []
    began_s = time.perf_counter()

    async def one(client: Client, outcome: Outcome) -> None:
        try:
            result = await client.one()
        except (BadAnswer, OSError) as error:
            if " 429 " in str(error)[:40] or " 503 " in str(error)[:40]:
                outcome.refused += 1
            else:
                outcome.failed.append(f"{type(error).__name__}: {error}"[:200])
            return
        outcome.answered += 1
        outcome.first_s.append(result.first_token_s - result.sent_s)
        outcome.lost_tokens += ANSWER_TOKENS - result.completion_tokens
        in_time = sum(piece_s < began_s + seconds for piece_s in result.pieces_s) / len(result.pieces_s)
        outcome.tokens_in_time += in_time * result.completion_tokens

    due_s = began_s
    while (due_s := due_s + draw.expovariate(per_s)) < began_s + seconds:
        (band,) = draw.choices(list(SHARES), list(SHARES.values()))
        await asyncio.sleep(due_s - time.perf_counter())
        tenant = draw.choice(TENANTS)
        if band in bands:
            tasks.append(asyncio.create_task(one(clients[tenant, band], outcomes[band])))
    await asyncio.gather(*tasks)


async def step_s(server: RunningServer, key: str) -> tuple[float, float]:
    """Return the mean duration of a decode call, and the number of pauses."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
        nodes = (await client.get(f"http://{server.host}:{server.port}/puna/v1/nodes")).json()["nodes"]
        (address,) = (runner["metrics_address"] for node in nodes for runner in node["runners"])
        page = (await client.get(f"http://{address}/metrics")).text
    calls = metric_sum(page, "puna_runner_decode_calls_total")
    return metric_sum(page, "puna_runner_decode_seconds_total") / calls, metric_sum(page, "puna_runner_pauses_total")


async def measure(
    server: RunningServer, model: str, key_of: Callable[[str, Band], str], seconds: float, rounds: int
) -> Verdict:
    """Measure the capacity, and three times that: the high band alone, all of it with one band and with three."""
    own = key_of("ada", Band.HIGH)
    client = Client(server, model, own, Random(2))
    for _ in range(WARM_UP):
        await client.one()
    capacity = await measure_capacity(client)

    def clients_of(name: str, band_of: Callable[[Band], Band]) -> dict[tuple[str, Band], Client]:
        return {
            (tenant, band): Client(server, model, key_of(tenant, band_of(band)), Random(f"{name} {tenant} {band}"))
            for tenant in TENANTS
            for band in Band
        }

    runs: dict[str, tuple[dict[tuple[str, Band], Client], Container[Band]]] = {
        "alone": (clients_of("alone", lambda band: band), {Band.HIGH}),
        "one band": (clients_of("one band", lambda _: Band.NORMAL), ALL),
        "three bands": (clients_of("three bands", lambda band: band), ALL),
    }
    found = {name: {band: Outcome() for band in Band} for name in runs}
    for number in range(rounds):
        for name, (clients, bands) in sorted(runs.items(), reverse=number % 2 > 0):
            await send(clients, found[name], per_s=OVERLOAD * capacity, seconds=seconds, seed=number, bands=bands)
    for name, outcomes in found.items():
        for band, outcome in outcomes.items():
            if band not in runs[name][1]:
                continue
            print(
                f"{name}, {band.name.lower()}: {outcome.answered} answered, {outcome.refused} refused, "
                f"{len(outcome.failed)} failed {outcome.failed[:1]}, first token p50 "
                f"{quantile(outcome.first_s, 0.5) * 1000:.0f} ms, p99 {quantile(outcome.first_s, 0.99) * 1000:.0f} ms"
            )
    call_s, pauses = await step_s(server, own)
    alone_s = quantile(found["alone"][Band.HIGH].first_s, 0.99)
    high_s, allowed_s = quantile(found["three bands"][Band.HIGH].first_s, 0.99), FIRST_TOKEN_BAR * alone_s + call_s
    goods = [
        sum(outcome.tokens_in_time for outcome in found[name].values()) / (rounds * seconds)
        for name in ("one band", "three bands")
    ]
    lost = sum(outcome.lost_tokens + len(outcome.failed) for one in found.values() for outcome in one.values())
    text = (
        f"high band's first token p99 {high_s * 1000:.0f} ms (bar {allowed_s * 1000:.0f}: 1.1 x {alone_s * 1000:.0f} "
        f"+ a step of {call_s * 1000:.1f}), {lost} tokens lost, goodput {goods[1]:.0f} of {goods[0]:.0f} tokens/s = "
        f"{goods[1] / goods[0]:.3f} (bar {GOODPUT_BAR}), {pauses:.0f} pauses, load {load_average()}"
    )
    return Verdict("K6", text, high_s <= allowed_s and not lost and goods[1] >= GOODPUT_BAR * goods[0] and pauses > 0)


def main() -> int:
    """Print the verdict; 1 if the bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="57m", help="of the zoo")
    parser.add_argument("--seconds", default=25.0, type=float, help="of each of the three loads in a round")
    parser.add_argument("--rounds", default=6, type=int)
    args = parser.parse_args()
    print(f"machine: {describe_machine()}")
    with tempfile.TemporaryDirectory(prefix="puna-bands-") as name:
        models, file = Path(name) / "models", Path(name) / "keys.json"
        models.mkdir()
        path = build(args.model, models)
        keys = {
            (tenant, band): make_key(
                f"{tenant}-{band}", file, tenant=tenant, band=band.name.lower(), scopes=["infer", "models:read"]
            )
            for tenant in TENANTS
            for band in Band
        }
        settings = {"PUNA_API_KEYS_FILE": str(file), "PUNA_API_KEY": keys["ada", Band.HIGH]}
        with running_cluster(models, SIZES, **settings) as server:
            verdict = asyncio.run(measure(server, path.stem, lambda *whose: keys[whose], args.seconds, args.rounds))
    print(verdict.line())
    return 0 if verdict.reached else 1


if __name__ == "__main__":
    sys.exit(main())

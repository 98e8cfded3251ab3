"""Each check of docs/gpu.md on one card. A check yields its figures; a figure says what was asked and measured."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.cluster import Cluster, start_cluster
from tests.faults.bars.bar import Figure, at_least, at_most
from tests.gpu.card import MIB, Card, NvidiaCard
from tests.waiting import wait_until

ROUNDS = 10
FREED_WITHIN_S = 60.0
REPLACED_WITHIN_S = 20.0
ANSWER_S = 300.0
TOO_LITTLE_BYTES = 16 * MIB
PROMPT_WORDS = 1500
PLAIN_CONTEXT = 4096
DIFFERENCE_BYTES = 64 * MIB  # what a driver may keep between two looks

Check = Callable[[Card, str, Path], Iterator[Figure]]


def check_listed(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """The engine lists the card as its driver does, also cut into four."""
    whole = [device for device in _probe(card) if device["id"] == card.id]
    yield at_least("devices with the card's id", len(whole), 1)
    for device in whole:
        yield at_most(
            "total memory, difference", [abs(int(device["total_bytes"]) - card.total_bytes) / MIB], 1024, "MiB"
        )
        difference = abs(int(device["free_bytes"]) - card.free_bytes())
        yield at_most("free memory, difference", [difference / MIB], 1024, "MiB")  # a context of CUDA is in one of them
        if isinstance(card, NvidiaCard):
            # The driver's form of the address has a longer domain.
            agrees = card.pci_id.endswith(str(device.get("pci_id", "?")).lower())
            yield at_least("its PCI address agrees", int(agrees), 1)
            cut = [device for device in _probe(card, GGML_CUDA_DEVICES="4") if device["id"].startswith(card.id)]
            yield at_least("devices of it with GGML_CUDA_DEVICES=4", len(cut), 4)


def check_report(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """A load takes of the card what its replica reports; the gap is learned, and known at the next load."""
    with _cluster(card, home) as cluster:
        for load in ("first", "second"):
            before = card.free_bytes()
            _load(cluster, model)
            taken = before - card.free_bytes()
            (placement,) = _placements(cluster, model)
            reported = int(placement["measured_bytes"].get(card.id, 0))
            yield at_least(f"{load} load: bytes on the card, reported", reported, 1)
            yield at_most(f"{load} load: taken beyond the report", [(taken - reported) / MIB], 2048, "MiB")
            explained = _explained(cluster, model, card)
            _unload(cluster, model)
            _wait_freed(card, before)
        learned = explained["reserve_bytes"]
        yield at_most(
            f"reserve ({explained['reserve_source']}) beside the gap of the second load",
            [abs(learned - max(0, taken - reported)) / MIB],
            256,
            "MiB",
        )


def check_full_at_load(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """A load on a full card is an error that names the refused memory, and the next load works."""
    device = {"device_id": card.id, "layer_count": 1000}
    for address in _lent(card):
        device["rpc_address"] = address
    layout = {"devices": [device], "context_tokens": PLAIN_CONTEXT}
    file = home / "files" / f"{model}.gguf"
    command = [sys.executable, "-m", "runner", "serve", "--model", str(file), "--layout", json.dumps(layout)]
    environment = os.environ | card.environment
    with card.filled(leave_bytes=TOO_LITTLE_BYTES):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=ANSWER_S, check=False)
    said = done.stdout + done.stderr
    yield at_least("runner serve ends with an error", int(done.returncode > 0), 1)
    yield at_least("it names the card and the bytes that were refused", int(f"{card.id} refused " in said), 1)
    with _cluster(card, home) as cluster:
        _load(cluster, model)
        yield at_least("the next load works", len(_placements(cluster, model)), 1)


def check_freed(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """Ten loads and unloads leave the card as it was."""
    with _cluster(card, home) as cluster:
        first, freed_s, missing = card.free_bytes(), [], []
        for _ in range(ROUNDS):
            _load(cluster, model)
            began_s = time.monotonic()
            _unload(cluster, model)
            missing.append((first - _wait_freed(card, first)) / MIB)
            freed_s.append(time.monotonic() - began_s)
        yield at_most("memory missing after an unload", missing, DIFFERENCE_BYTES / MIB, "MiB")
        yield at_most("until it was back", freed_s, FREED_WITHIN_S, "s")


def check_full_at_decode(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """A card that is full while it computes costs no more than the answers that needed the memory."""
    with _cluster(card, home) as cluster:
        _load(cluster, model)
        _ask(cluster, model, "word")
        with card.filled(leave_bytes=0):
            with ThreadPoolExecutor() as clients:
                asked = [clients.submit(_ask, cluster, model, f"{n} " * PROMPT_WORDS) for n in range(4)]
            ends = [one.result() for one in asked]
        yield at_most("answers that were neither whole nor an error of memory", [sum(map(_is_strange, ends))], 0)
        print("  ends:", sorted(ends), flush=True)
        wait_until(lambda: _ask(cluster, model, "word") == "200", deadline_s=ANSWER_S, what="it answers again")
        yield at_most("devices that are not used any more", [len(_worn(cluster, card))], 0)


def check_endless_kernel(card: Card, model: str, home: Path) -> Iterator[Figure]:
    """A kernel that never ends is noticed, its runner replaced, and the card used again."""
    options = {"real": True, "endless_kernel_after_steps": 20}
    with _cluster(card, home, PUNA_ENGINE="fake", PUNA_ENGINE_OPTIONS=json.dumps(options)) as cluster:
        _load(cluster, model)
        before = {one["pid"] for one in cluster.runners()}
        began_s = time.monotonic()
        with ThreadPoolExecutor() as clients:
            asked = clients.submit(_ask, cluster, model, "word", tokens=40)
            wait_until(
                lambda: any(one["pid"] not in before and one["state"] == "ready" for one in cluster.runners()),
                deadline_s=ANSWER_S,
                what="another runner serves",
            )
            replaced_s = time.monotonic() - began_s
            yield at_most("until its runner is replaced", [replaced_s], REPLACED_WITHIN_S, "s")
            print("  the answer:", asked.result(), flush=True)
        yield at_most("devices that are not used any more", [len(_worn(cluster, card))], 0)


CHECKS: Mapping[str, Check] = {
    "listed": check_listed,
    "report": check_report,
    "full at load": check_full_at_load,
    "freed": check_freed,
    "full at decode": check_full_at_decode,
    "endless kernel": check_endless_kernel,
}


@contextmanager
def _cluster(card: Card, home: Path, **environment: str) -> Iterator[Cluster]:
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    for file in (home / "files").glob("*.gguf"):
        if not (models / file.name).exists():
            (models / file.name).hardlink_to(file)
    cluster = start_cluster(home, PUNA_CONTEXT_LENGTH=str(PLAIN_CONTEXT), **card.environment, **environment)
    try:
        cluster.post("/puna/v1/unload", {"model": "demo"})
        yield cluster
    finally:
        cluster.stop()


def _probe(card: Card, **environment: str) -> list[dict[str, Any]]:
    lent = [word for address in _lent(card) for word in ("--rpc", address)]
    done = subprocess.run(
        [sys.executable, "-m", "runner", "probe", *lent],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | card.environment | environment,
        timeout=ANSWER_S,
    )
    devices: list[dict[str, Any]] = json.loads(done.stdout)["devices"]
    return devices


def _lent(card: Card) -> list[str]:
    return [address for address in card.environment.get("PUNA_RPC_DEVICES", "").split(",") if address]


def _load(cluster: Cluster, model: str) -> None:
    answer = cluster.post("/puna/v1/load", {"model": model})
    assert answer.status_code == httpx.codes.OK, answer.text
    wait_until(
        lambda: any(one["fraction"] is None for one in _placements(cluster, model)),
        deadline_s=ANSWER_S,
        what=f"{model} is loaded",
    )


def _unload(cluster: Cluster, model: str) -> None:
    answer = cluster.post("/puna/v1/unload", {"model": model})
    assert answer.status_code == httpx.codes.OK, answer.text
    wait_until(lambda: not _placements(cluster, model), deadline_s=ANSWER_S, what=f"{model} is gone")


def _placements(cluster: Cluster, model: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{cluster.url}/puna/v1/placements", timeout=60).raise_for_status()
    return [one for one in answer.json()["placements"] if one["model"].partition(":")[0] == model]


def _explained(cluster: Cluster, model: str, card: Card) -> dict[str, Any]:
    answer = httpx.get(f"{cluster.url}/puna/v1/explain", params={"model": model}, timeout=60).raise_for_status()
    devices = [device for one in answer.json()["candidates"] for device in one["devices"] if device["id"] == card.id]
    assert devices, answer.text
    return dict(devices[0])


def _ask(cluster: Cluster, model: str, prompt: str, *, tokens: int = 8) -> str:
    """Return the status, and behind it the name of an error."""
    body = {"model": model, "prompt": prompt, "raw": True, "stream": False, "options": {"num_predict": tokens}}
    answer = httpx.post(f"{cluster.url}/api/generate", json=body, timeout=ANSWER_S)
    return str(answer.status_code) if answer.is_success else f"{answer.status_code} {answer.text}"


def _is_strange(end: str) -> bool:
    return end != "200" and "memory" not in end


def _worn(cluster: Cluster, card: Card) -> list[str]:
    (node,) = httpx.get(f"{cluster.url}/puna/v1/nodes", timeout=60).json()["nodes"]
    return [
        f"{device['state']}: {device['state_reason']}"
        for device in node["devices"]
        if device["id"] == card.id and device["state"] != "ok"
    ]


def _wait_freed(card: Card, free_bytes: int) -> int:
    """Return the free memory once it is back, or when it should be."""
    found: list[int] = []

    def is_back() -> bool:
        found.append(card.free_bytes())
        return found[-1] >= free_bytes - DIFFERENCE_BYTES

    try:
        wait_until(is_back, deadline_s=FREED_WITHIN_S, what="the memory is free")
    except AssertionError:
        return found[-1]
    return found[-1]

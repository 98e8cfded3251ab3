"""Bar 13: every component is replaced by the next version and back, one at a time, under an open-loop load.

The earlier version is the wheel of a commit (FAULTS_PREVIOUS, by default the one before this), installed beside this
tree and run by the same interpreter. Versions are mixed from the first replacement to the last.
"""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx

from common.version import COMMIT_DIGITS, checkout_commit
from tests.faults.bars.bar import Bar, Figure, Round, at_least, failures
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import ROOT, Rig, python, running_rig
from tests.ports import free_port
from tests.waiting import next_look, wait_until

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
PREVIOUS = os.environ.get("FAULTS_PREVIOUS", "HEAD~1")
STEPS = ("discovery", "scheduler-1", "scheduler-0", "gateway-0", "gateway-1", "host-a", "host-b")
NODES = ("a", "b")
BALANCER_S = 0.5  # between two looks at /readyz
READY_S_MAX = 90.0
FULL = 4 * len(STEPS)
MIXED_S_MIN = 300.0  # at full size, where each replacement stands for a while


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def missing() -> str:
    """Describe why there is no earlier version; empty: there is."""
    found = _git("rev-parse", "--verify", f"{PREVIOUS}^{{commit}}")
    return "" if found.returncode == 0 else f"no commit {PREVIOUS} in this checkout (FAULTS_PREVIOUS)"


def _install(directory: Path) -> tuple[Path, str]:
    """Build the earlier wheel and install it without the network; return its place and its commit."""
    tree, installed = directory / "earlier-tree", directory / "earlier"
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    commit = _git("rev-parse", f"{PREVIOUS}^{{commit}}").stdout.strip()
    pip = python("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    subprocess.run([*pip, "--target", installed, tree], env=os.environ | {"SOURCE_COMMIT": commit}, check=True)
    (tree / "tests").rename(installed / "tests")  # the timed engine, which no wheel has
    shutil.rmtree(tree)
    return installed, commit[:COMMIT_DIGITS]


class Balancer:
    """Gateways that say that they are ready, as a load balancer sees them."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.ready = rig.gateways()

    async def watch(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while True:
                found = []
                for host, port in self._rig.gateways():
                    try:
                        answer = await client.get(f"http://{host}:{port}/readyz")
                    except httpx.TransportError:
                        continue
                    found += [(host, port)] if answer.status_code == httpx.codes.OK else []
                self.ready = found
                await next_look(BALANCER_S)


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # replacements build on each other
    earlier, commit = await asyncio.to_thread(_install, directory)
    own = checkout_commit(ROOT) or ""
    # A sample takes components from all over the list.
    steps = STEPS[:: -max(1, len(STEPS) // size)] if size < len(STEPS) else STEPS
    roots = dict.fromkeys(STEPS, earlier)
    async with running_rig(directory, replicas=2, schedulers=2, gateways=2, nodes=NODES, fake=FAKE, roots=roots) as rig:
        balancer = Balancer(rig)
        watching = asyncio.create_task(balancer.watch())
        mixed_from_s = time.monotonic()
        async with OpenLoop(lambda: balancer.ready, PER_SECOND) as load:
            for number in range(size):
                # Up through all of them, and back.
                name, is_back = steps[number % len(steps)], number // len(STEPS) % 2 == 1
                begun_s = time.monotonic()
                proven = await _replace(rig, name, *((earlier, commit) if is_back else (ROOT, own)))
                if size >= FULL:
                    await asyncio.sleep(MIXED_S_MIN / FULL)
                yield {
                    "fault": f"{name} replaced by {'the earlier' if is_back else 'this'} version",
                    "proven": proven,
                    "figures": {"took_s": time.monotonic() - begun_s},
                    "load": load.take(),
                }
            await asyncio.sleep(5)
            await load.stop()
            yield {"load": load.take(), "figures": {"mixed_s": time.monotonic() - mixed_from_s}}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _replace(rig: Rig, name: str, root: Path, commit: str) -> bool:
    """Replace a service as docs/upgrade.md says; True if the package that it imported is of that commit."""
    node = name.removeprefix("host-") if name.startswith("host-") else ""
    if node:
        await _drain(rig, node)
    await asyncio.to_thread(rig.kill, name, signal.SIGTERM)
    rig.roots[name] = root
    events = f"{name.partition('-')[0]}.ready"
    ready = len(rig.events(name, events))
    metrics = f"127.0.0.1:{free_port()}"
    rig.start(name, PUNA_METRICS_LISTEN=metrics)
    await rig.logged(name, events, ready + 1)
    if node:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            (await client.post(f"{rig.url}/puna/v1/nodes/{node}/undrain")).raise_for_status()
    if name.startswith("gateway"):
        url = f"http://{rig.address(name)}/readyz"
        await asyncio.to_thread(wait_until, lambda: _is_ready(url), deadline_s=READY_S_MAX, what=f"{name} is ready")
    await rig.serves(2 if not node else 1)
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        page = (await client.get(f"http://{metrics}/metrics")).text
    # A process reads its commit beside the package that it imported.
    return re.findall(r'puna_build_info{.*version="[^"+]+\+(\w+)', page) == [commit]


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def _drain(rig: Rig, node: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        (await client.post(f"{rig.url}/puna/v1/nodes/{node}/drain")).raise_for_status()

    def is_drained() -> bool:
        return any(one["id"] == node and one["state"] == "drained" for one in rig.nodes())

    await asyncio.to_thread(wait_until, is_drained, deadline_s=READY_S_MAX, what=f"{node} is drained")


def _judge(rounds: list[Round]) -> list[Figure]:
    mixed = [one["figures"]["mixed_s"] for one in rounds if "mixed_s" in one.get("figures", {})]
    wanted_s = MIXED_S_MIN if sum("fault" in one for one in rounds) >= FULL else 1.0
    replaced = {one["fault"].split()[0] for one in rounds if "fault" in one}
    return [
        *failures(rounds, "requests"),
        at_least("components replaced", len(replaced), min(len(STEPS), sum("fault" in one for one in rounds))),
        at_least("time with mixed versions", round(mixed[0]) if mixed else None, wanted_s, "s"),
    ]


ROLLING = Bar(
    number=13,
    key="rolling",
    title="an earlier and this version side by side, every component replaced and back",
    full=FULL,
    sample=2,
    unit="replacements",
    minutes=12,
    per_round=0,
    run=_run,
    judge=_judge,
    needs=missing,
)

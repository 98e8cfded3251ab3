"""Engine threads that stand still on devices of one node: the scheduler replaces their runners, and answers go on."""

import json
import threading
import time
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

import httpx

from tests.cluster import Cluster, endless, start_cluster
from tests.faults.faults import broken, engine_blocked
from tests.limited_device import limited_device
from tests.waiting import Stopwatch, wait_until

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo.gguf"
PAUSE_S_MAX = 5.0  # of an answer that nothing happened to; the others wait for ten seconds at least
NAMES = ("one", "two", "three")


class Answer(threading.Thread):
    """Reader of an endless answer."""

    def __init__(self, cluster: Cluster, model: str, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self.error = ""
        self.pause_s = 0.0  # the longest since the first part
        self._leaves = threading.Event()
        self._url = f"{cluster.url}/api/generate"
        self._body = {"model": model, "prompt": "Tell me everything.", "raw": True, "options": options}
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
            heard_s = inf
            for line in answer.iter_lines():
                event = json.loads(line)
                self.pause_s, heard_s = max(self.pause_s, time.monotonic() - heard_s), time.monotonic()
                self.error = self.error or event.get("error", "")
                self.text += event.get("response", "")
                if self._leaves.is_set():
                    return

    def grows(self) -> None:
        """Wait until more of it has come."""
        length = len(self.text)
        wait_until(lambda: len(self.text) > length or self.error != "", deadline_s=60, what="the answer goes on")
        assert not self.error

    def leave(self) -> None:
        self._leaves.set()
        self.join(60)


def ready_runners(cluster: Cluster) -> dict[str, int]:
    """Process ids of the runners that serve, by model."""
    return {one["model"].partition(":")[0]: one["pid"] for one in cluster.runners() if one["state"] == "ready"}


def device_states(cluster: Cluster) -> set[str]:
    (node,) = httpx.get(f"{cluster.url}/puna/v1/nodes", timeout=60).json()["nodes"]
    return {device["state"] for device in node["devices"]}


def test_two_engine_threads_that_block_are_replaced_while_another_device_goes_on(tmp_path: Path) -> None:
    with ExitStack() as running:
        devices = [running.enter_context(limited_device(mib=700)) for _ in (*NAMES, "demo")]
        models = tmp_path / "p" / "models"
        models.mkdir(parents=True)
        for number, name in enumerate(NAMES):  # what follows the tensors makes it another model
            (models / f"{name}.gguf").write_bytes(DEMO.read_bytes() + bytes(32 * (number + 1)))
        cluster = start_cluster(
            tmp_path / "p", PUNA_RPC_DEVICES=",".join(device.address for device in devices), PUNA_CONTEXT_LENGTH="16384"
        )
        running.callback(cluster.stop)
        options = endless(cluster)
        answers = []
        for name in NAMES:
            answers.append(Answer(cluster, name, options))
            running.callback(answers[-1].leave)
            answers[-1].grows()
        wait_until(lambda: set(NAMES) <= ready_runners(cluster).keys(), deadline_s=30, what="all are shown")
        before = ready_runners(cluster)
        assert all(device.used_bytes() for device in devices), "each has a device of its own, as has the demo model"

        watch = Stopwatch()
        with broken(engine_blocked(before["one"])), broken(engine_blocked(before["two"])):
            wait_until(
                lambda: (
                    (now := ready_runners(cluster)).keys() >= set(NAMES)
                    and now["one"] != before["one"]
                    and now["two"] != before["two"]
                ),
                deadline_s=90,
                what="both are replaced",
            )
            replaced_s = watch.wall_s
        for answer in answers:
            answer.grows()
        assert ready_runners(cluster)["three"] == before["three"]
        wait_until(lambda: device_states(cluster) == {"ok"}, deadline_s=30, what="every device is usable")
        watch.assert_within(20, "both runners are replaced", took_s=replaced_s)
        watch.assert_within(PAUSE_S_MAX, "the answer on another device goes on", took_s=answers[2].pause_s)

"""Files as people have them: each is served under a valid name or listed with its reason, and nothing else changes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.cluster import Cluster, start_cluster
from tests.file_names import AWKWARD, file_names
from tests.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CLIENT = httpx.Client()  # making one takes longer than a request
ASK = {"model": "demo", "prompt": "What is Puna?", "raw": True, "stream": False, "options": {"num_predict": 1}}


@pytest.fixture(scope="module")
def files_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("files") / "home")
    try:
        yield running
    finally:
        CLIENT.close()
        running.stop()


def listed(cluster: Cluster) -> dict[str, str]:
    """Every model of GET /api/tags and why it cannot be used; nothing for one that can."""
    answer = CLIENT.get(cluster.url + "/api/tags", timeout=60)
    return {model["name"]: model.get("error", "") for model in answer.json()["models"]}


def kill_gateway(cluster: Cluster) -> None:
    """End the gateway and wait until another one admits requests."""
    killed = cluster.pid_of("gateway")
    os.kill(killed, signal.SIGKILL)

    def ready() -> bool:
        try:
            return CLIENT.get(cluster.url + "/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(lambda: cluster.pid_of("gateway") not in (0, killed), deadline_s=60, what="the gateway is restarted")
    wait_until(ready, deadline_s=30, what="the new gateway is ready")


@contextmanager
def always_ready(cluster: Cluster) -> Iterator[None]:
    """Check that the gateway stays ready and the demo model served for as long as the block runs."""
    over, wrong = Event(), list[str]()

    def look() -> None:
        with httpx.Client(base_url=cluster.url, timeout=30) as client:
            while not over.wait(0.2):
                ready, shown = client.get("/readyz"), client.post("/api/show", json={"model": "demo"})
                if (ready.status_code, shown.status_code) != (200, 200):
                    wrong.append(f"/readyz {ready.text}; /api/show {shown.text[:200]}")

    watching = Thread(target=look)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()
    assert not wrong, wrong[0]


def test_ordinary_names_are_served_and_a_restarted_gateway_is_ready(files_cluster: Cluster) -> None:
    """Take the steps of C1."""
    demo = files_cluster.models / "demo.gguf"
    served = {
        "my model (1).gguf": "my-model-1:latest",
        "gemma+x.gguf": "gemma-x:latest",
        "-lead.gguf": "lead:latest",
        "UPPER.GGUF": "UPPER:latest",
    }
    hashed = {"模型.gguf": "model-", "m" * 85 + ".gguf": "m" * 71 + "-"}
    made = [files_cluster.models / name for name in (*served, *hashed)]
    try:
        with always_ready(files_cluster):
            for path in made:
                path.hardlink_to(demo)

            def all_listed() -> bool:
                names = listed(files_cluster)
                return set(served.values()) <= names.keys() and all(
                    any(name.startswith(start) for name in names) for start in hashed.values()
                )

            wait_until(all_listed, deadline_s=60, what="every file is listed")
        kill_gateway(files_cluster)
        names = listed(files_cluster)
        assert names == dict.fromkeys(names, ""), "each can be used"
        assert len(names) == len(made) + 1
        for name in names:
            shown = CLIENT.post(files_cluster.url + "/api/show", json={"model": name}, timeout=60)
            assert shown.status_code == 200, name
        for name in ("demo", "my-model-1"):
            assert files_cluster.post("/api/generate", ASK | {"model": name}).status_code == 200, name
    finally:
        for path in made:
            path.unlink(missing_ok=True)
    wait_until(lambda: set(listed(files_cluster)) == {"demo:latest"}, deadline_s=30, what="the names are gone")


def test_what_is_no_regular_file_is_listed_with_its_reason(files_cluster: Cluster) -> None:
    """Take the steps of C6, and those of other things with the name of a model file."""
    models = files_cluster.models
    fifo, link, loop, folder = (models / f"{name}.gguf" for name in ("pipe", "gone", "loop", "folder"))
    reasons = {
        "pipe:latest": "a FIFO",
        "gone:latest": "leads nowhere",
        "loop:latest": "leads in a circle",
        "folder:latest": "a directory",
        "socket:latest": "a socket",
    }
    late = models / "late one.gguf"
    with socket.socket(socket.AF_UNIX) as listener, always_ready(files_cluster):
        here = os.open(models, os.O_RDONLY)
        try:  # the path of the home may be longer than a socket's name may be
            listener.bind(f"/proc/self/fd/{here}/socket.gguf")
        finally:
            os.close(here)
        os.mkfifo(fifo)
        link.symlink_to(models / "nowhere")
        loop.symlink_to(loop)
        folder.mkdir()
        try:
            wait_until(lambda: reasons.keys() <= listed(files_cluster).keys(), deadline_s=60, what="all are listed")
            late.hardlink_to(models / "demo.gguf")
            wait_until(
                lambda: listed(files_cluster).get("late-one:latest") == "",
                deadline_s=60,
                what="discovery goes on to find files",
            )
            found = listed(files_cluster)
            for name, words in reasons.items():
                assert words in found[name], found[name]
            for command in (["models"], ["doctor"]):
                said = run_puna(files_cluster, *command)
                for words in reasons.values():
                    assert words in said, said
        finally:
            for path in (fifo, link, loop, late, models / "socket.gguf"):
                path.unlink(missing_ok=True)
            shutil.rmtree(folder)


def test_the_page_shows_the_whole_reason_of_a_file_that_cannot_be_used(
    browser: "Browser", files_cluster: Cluster
) -> None:
    from tests.e2e.browser_page import opened  # the others do without a driver of browsers

    file = files_cluster.models / ("a long name " * 12 + "<b>.gguf")
    os.mkfifo(file)
    try:
        wait_until(lambda: any(listed(files_cluster).values()), deadline_s=60, what="it is listed")
        with opened(browser, files_cluster.url, view="#models") as watched:
            watched.wait_live()
            watched.go("Models")
            reason = watched.page.get_by_text(f"{file}: a FIFO, not a regular file")
            reason.wait_for(state="visible")
            assert reason.evaluate("shown => shown.scrollWidth <= shown.clientWidth"), "no part of it is cut off"
            assert reason.evaluate("shown => shown.scrollHeight <= shown.clientHeight + 1")
            watched.check()
    finally:
        file.unlink()


def run_puna(cluster: Cluster, *words: str) -> str:
    """Return the output of a command about this cluster."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PUNA_HOST": cluster.url, "PUNA_HOME": str(cluster.home)},
    )
    return done.stdout + done.stderr


def test_every_name_of_a_file_is_served_or_listed_with_its_reason(files_cluster: Cluster) -> None:
    """Search names with the whole cluster: nothing is hidden, and a restarted gateway has all of it."""
    demo = files_cluster.models / "demo.gguf"
    searched: set[str] = {*AWKWARD}

    @settings(max_examples=40, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(file_names())
    def search(name: str) -> None:
        searched.add(name)

    search()
    made = []
    try:
        with always_ready(files_cluster):
            for index, name in enumerate(sorted(searched)):
                folder = files_cluster.models / str(index % 3)  # names of files that differ in folders alone, too
                folder.mkdir(exist_ok=True)
                made.append(folder / name)
                made[-1].hardlink_to(demo)
            wait_until(lambda: len(listed(files_cluster)) == len(made) + 1, deadline_s=120, what="every file is listed")
        before = listed(files_cluster)
        kill_gateway(files_cluster)
        assert listed(files_cluster) == before
        for name, error in before.items():
            shown = CLIENT.post(files_cluster.url + "/api/show", json={"model": name}, timeout=60)
            assert error in shown.json()["error"] if error else shown.status_code == 200, (name, shown.text)
            assert error.isprintable()
            assert not error or "rename it" in error or "1 of 2 files" in error, (name, error)
        usable = [name for name, error in before.items() if not error]
        assert len(usable) > len(made) / 2
        log = (files_cluster.home / "logs" / "gateway.log").read_text()
        assert "routes.refused" not in log
        assert "row.skipped" not in log
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def test_three_hundred_files_are_all_listed_while_the_good_one_serves(files_cluster: Cluster) -> None:
    content = (files_cluster.models / "demo.gguf").read_bytes()[:1000]
    made = [files_cluster.models / f"part {index} of 300.gguf" for index in range(300)]
    try:
        with always_ready(files_cluster):
            for path in made:
                path.write_bytes(content)
            assert files_cluster.post("/api/generate", ASK).status_code == 200
            wait_until(lambda: len(listed(files_cluster)) > 20, deadline_s=120, what="one after the other is listed")
    finally:
        for path in made:
            path.unlink(missing_ok=True)

"""Files of a home that cannot be read: each is named, set aside where that is safe, and the rest starts."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import httpx

from tests.cluster import Cluster, start_cluster
from tests.integration.cli.place import run_puna
from tests.waiting import wait_until


def answers(cluster: Cluster) -> bool:
    body = {"model": "demo", "prompt": "What is Puna?", "stream": False, "options": {"num_predict": 4}}
    try:
        return cluster.post("/api/generate", body).status_code == 200
    except httpx.TransportError:
        return False


def findings(home: Path) -> list[dict[str, str]]:
    """Return what `puna doctor` says of the state."""
    report = json.loads(run_puna("doctor", "--json", PUNA_HOME=str(home)).stdout)
    return [finding for finding in report["findings"] if finding["area"] == "state"]


def test_a_host_with_a_corrupt_fence_and_note_comes_back_obeys_its_scheduler_and_doctor_names_both(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    cluster = start_cluster(home)
    try:
        assert answers(cluster)
        (home / "fence.json").write_bytes(bytes(40))
        (note,) = (home / "runners").glob("*.json")
        note.write_text("{")
        killed = cluster.pid_of("host")
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: cluster.pid_of("host") not in (0, killed), deadline_s=30, what="the host is back")
        wait_until(lambda: "corrupt" in str([*home.glob("fence.json.*")]), deadline_s=30, what="it is set aside")
        unloaded = run_puna("unload", "demo", PUNA_HOME=str(home))
        assert unloaded.returncode == 0, unloaded.stderr
        wait_until(lambda: answers(cluster), deadline_s=60, what="a new load by the leader")
        named = [(finding["level"], finding["text"].partition(".corrupt-")[0]) for finding in findings(home)]
        assert sorted(named) == sorted([("warn", "fence.json"), ("warn", note.name)])
    finally:
        cluster.stop()


def test_a_corrupt_redis_file_is_named_by_up_and_by_doctor_whose_command_lets_the_rest_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    start_cluster(home).stop()
    (manifest,) = (home / "redis" / "appendonlydir").glob("*.manifest")
    manifest.write_text("garbage")

    refused = run_puna("up", "--port", "0", "--grpc-port", "0", "--home", str(home))
    assert refused.returncode == 1
    assert "redis could not start" in refused.stderr
    assert "puna doctor" in refused.stderr
    (finding,) = findings(home)
    assert finding["level"] == "fail"
    assert "AOF manifest" in finding["text"]
    subprocess.run(shlex.split(finding["advice"].rpartition(": ")[2]), check=True)

    cluster = start_cluster(home)
    try:
        assert answers(cluster)
        assert findings(home) == []
    finally:
        cluster.stop()

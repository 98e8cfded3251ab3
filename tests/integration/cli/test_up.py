"""`puna up` and the other commands with the real services, as a user runs them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.audit.chain import check_chain
from tests.cluster import Cluster, start_cluster, trained_answers
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
COMMAND_WITHIN_S = 60.0
QUESTION = "What is Puna?"


def puna(
    *arguments: str, home: Path, stdin: str | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "PUNA_HOME": str(home), **environment},
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=COMMAND_WITHIN_S,
        check=False,
    )


def state(cluster: Cluster) -> dict[str, Any]:
    """Read the supervisor's record of its services."""
    answer: dict[str, Any] = json.loads((cluster.home / "run" / "puna.json").read_text())
    return answer


def sockets(home: Path) -> list[str]:
    """Socket files in a home."""
    return [path.name for path in home.rglob("*") if path.is_socket()]


def answers(cluster: Cluster) -> bool:
    """True if the demo model gives its trained answer over HTTP."""
    body = {"model": "demo", "stream": False, "messages": [{"role": "user", "content": QUESTION}]}
    try:
        response = httpx.post(cluster.url + "/api/chat", json={**body, "options": {"temperature": 0}}, timeout=120)
    except httpx.TransportError:
        return False
    return response.is_success and response.json()["message"]["content"] == trained_answers()[QUESTION]


def test_the_curl_line_that_it_prints_gets_an_answer(cluster: Cluster) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    wait_until(lambda: "Ctrl-C stops everything." in log_of(cluster), deadline_s=COMMAND_WITHIN_S, what="the banner")
    line = next(line for line in log_of(cluster).splitlines() if line.startswith("Try "))
    done = subprocess.run(["sh", "-c", line.removeprefix("Try ")], capture_output=True, timeout=120, check=True)

    # The line leaves the temperature to the model, so only the form of the answer is certain.
    answer = json.loads(done.stdout)
    assert answer["done"] is True
    assert answer["message"]["content"]


def test_run_streams_the_trained_answer(cluster: Cluster) -> None:
    done = puna("run", "demo", "--temperature", "0", QUESTION, home=cluster.home)

    assert (done.returncode, done.stdout, done.stderr) == (0, trained_answers()[QUESTION] + "\n", "")


def test_run_reads_the_question_from_a_pipe(cluster: Cluster) -> None:
    done = puna("run", "demo", "--temperature", "0", home=cluster.home, stdin=QUESTION + "\n")

    assert done.stdout == trained_answers()[QUESTION] + "\n"


def test_run_names_an_unknown_model_in_one_line(cluster: Cluster) -> None:
    done = puna("run", "no-such-model", "hello", home=cluster.home)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "puna: model 'no-such-model' not found\n"


def test_ps_shows_the_loaded_model_as_json_and_as_columns(cluster: Cluster) -> None:
    assert answers(cluster)

    loaded = json.loads(puna("ps", "--json", home=cluster.home).stdout)["models"]
    lines = puna("ps", home=cluster.home).stdout.splitlines()

    assert [model["name"].partition(":")[0] for model in loaded] == ["demo"]
    assert lines[0].split()[:3] == ["NAME", "DIGEST", "SIZE"]
    assert lines[1].startswith("demo")


def test_nodes_shows_one_node_with_measured_memory(cluster: Cluster) -> None:
    nodes = json.loads(puna("nodes", "--json", home=cluster.home).stdout)["nodes"]

    assert len(nodes) == 1
    assert all(0 < device["free_bytes"] <= device["total_bytes"] for device in nodes[0]["devices"])
    assert all(device["free_source"] for device in nodes[0]["devices"])


def test_models_lists_the_demo(cluster: Cluster) -> None:
    assert "demo" in puna("models", home=cluster.home).stdout


def test_version_names_both_sides(cluster: Cluster) -> None:
    answer = json.loads(puna("version", "--json", home=cluster.home).stdout)

    assert answer["url"] == cluster.url
    assert answer["server"]


def test_the_home_has_an_audit_log_of_gateway_and_commands(cluster: Cluster) -> None:
    alias = "/puna/v1/aliases/audited"
    assert httpx.put(cluster.url + alias, json={"model": "demo"}).status_code == 200
    assert httpx.delete(cluster.url + alias).status_code == 200
    assert puna("trust", "init", home=cluster.home).returncode == 0
    shutil.rmtree(cluster.home / "trust")
    log = cluster.home / "audit.jsonl"
    lines = log.read_bytes().splitlines()
    assert check_chain(lines) == len(lines)
    allowed = [entry for entry in map(json.loads, lines) if entry.get("decision") == "allowed"]
    *_, put, removed, made = allowed
    assert [one["act"] for one in (put, removed, made)] == [
        "PUT /puna/v1/aliases/{alias}",
        "DELETE /puna/v1/aliases/{alias}",
        "trust.init",
    ]
    assert put["object"] == "audited"
    assert put["fence"] > 0
    assert log.stat().st_mode & 0o777 == 0o600


def test_puna_host_wins_over_the_cluster_of_the_home(cluster: Cluster) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = puna("ps", home=cluster.home, PUNA_HOST=nobody)

    assert done.returncode == 5
    assert done.stderr == f"puna: nothing answers at http://{nobody}; start it with `puna up`, or set PUNA_HOST\n"


def test_every_internal_listener_is_a_socket_of_this_user_alone(cluster: Cluster) -> None:
    assert {"redis.sock", "discovery.sock", "scheduler.sock", "host.sock"} <= set(sockets(cluster.home))
    assert (cluster.home / "run").stat().st_mode & 0o777 == 0o700


def test_every_service_serves_its_metrics_where_the_state_file_says(cluster: Cluster) -> None:
    for name, service in state(cluster)["services"].items():
        if name != "redis":
            page = httpx.get(f"http://{service['metrics_address']}/metrics", timeout=60)
            assert "puna_" in page.text, name


def test_a_second_up_on_the_same_ports_says_so_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    done = puna("up", "--port", str(cluster.port), "--grpc-port", "0", home=tmp_path)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"puna: 127.0.0.1:{cluster.port} is already in use\n"


def test_a_second_up_in_the_same_home_says_so_in_one_line(cluster: Cluster) -> None:
    done = puna("up", "--port", "0", "--grpc-port", "0", home=cluster.home)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"puna: {cluster.home} is already in use: puna runs there ({cluster.url}, pid {cluster.process.pid})\n"
    )
    assert answers(cluster)


def test_a_foreign_listener_on_the_grpc_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = puna("up", "--port", "0", "--grpc-port", str(port), home=tmp_path)

    assert (done.returncode, done.stderr) == (1, f"puna: 127.0.0.1:{port} is already in use\n")
    assert not (tmp_path / "run" / "short_path").exists()


def test_a_misspelt_setting_stops_the_start(tmp_path: Path) -> None:
    done = puna("up", "--port", "0", "--grpc-port", "0", home=tmp_path, PUNA_KEEPALIVE="1m")

    assert done.returncode == 1
    assert done.stderr == "puna: unknown setting PUNA_KEEPALIVE; did you mean PUNA_KEEP_ALIVE?\n"


def test_a_service_that_cannot_start_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    done = puna("up", "--port", "0", "--grpc-port", "0", home=tmp_path, PUNA_KEEP_ALIVE_MAX="soon")

    assert done.returncode == 1
    assert "could not start" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sockets(tmp_path) == []


def test_wrong_usage_has_status_2(tmp_path: Path) -> None:
    assert puna("up", "--port", "high", home=tmp_path).returncode == 2
    assert puna("fly", home=tmp_path).returncode == 2


def test_down_where_nothing_runs_is_no_failure(tmp_path: Path) -> None:
    done = puna("down", home=tmp_path)

    assert (done.returncode, done.stdout) == (0, f"nothing runs in {tmp_path}\n")


def test_down_stops_a_cluster_with_a_long_and_odd_path_and_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / ("long name % " + "x" * 90)
    directory.mkdir()
    cluster = start_cluster(directory / "home")
    assert answers(cluster)
    alias = Path(state(cluster)["run"]).parent
    assert alias.readlink() == cluster.home
    done = puna("down", home=cluster.home)

    assert (done.returncode, done.stdout) == (0, f"stopped the cluster in {cluster.home}\n")
    assert cluster.process.wait(COMMAND_WITHIN_S) == 0
    assert cluster.members() == []
    assert sockets(cluster.home) == []
    assert not alias.parent.exists()


def test_ctrl_c_ends_everything_even_when_services_hang(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "home")
    assert answers(cluster)
    for service in ("discovery", "host"):
        os.kill(state(cluster)["services"][service]["pid"], signal.SIGSTOP)
    cluster.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping" in log_of(cluster), deadline_s=COMMAND_WITHIN_S, what="it stops")
    cluster.process.send_signal(signal.SIGINT)  # the second one does not wait for those that hang

    assert cluster.process.wait(COMMAND_WITHIN_S) == 0
    assert cluster.members() == []
    assert sockets(cluster.home) == []


def test_services_of_a_killed_supervisor_end_with_the_next_start_and_without_one(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "home")
    assert answers(cluster)
    orphans = cluster.members()
    cluster.process.kill()
    cluster.process.wait()
    again = start_cluster(cluster.home)

    assert not set(orphans) & set(again.members())
    assert answers(again)
    again.process.kill()
    again.process.wait()
    wait_until(lambda: not again.members(), deadline_s=COMMAND_WITHIN_S, what="no process left")
    alias = Path(state(again)["run"]).parent
    assert puna("down", home=again.home).stdout == f"nothing runs in {again.home}\n"
    assert sockets(again.home) == []
    assert alias == again.home or not alias.exists()


def log_of(cluster: Cluster) -> str:
    """Return the output of `puna up`."""
    return (cluster.home.parent / f"{cluster.home.name}.up.log").read_text()

"""`puna doctor`: with a cluster, without one, and where things are wrong."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.cluster.plan import embedded_redis_server
from tests.integration.cli.place import ROOT, Place, call_puna, run_puna
from tests.ports import free_port
from tests.waiting import wait_until

SECRET = "geheim"


def examined(**environment: str) -> tuple[int, dict[str, Any]]:
    done = call_puna("doctor", "--json", **environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def of_area(report: dict[str, Any], area: str) -> list[dict[str, str]]:
    return [one for one in report["findings"] if one["area"] == area]


def test_a_healthy_cluster_has_nothing_to_complain_about(place: Place) -> None:
    status, report = examined(**place.environment())

    assert [one for one in report["findings"] if one["level"] == "fail"] == []
    assert (status, report["ok"]) == (0, True)
    assert "computes with quantized weights" in of_area(report, "engine")[0]["text"]
    assert {one["text"] for one in of_area(report, "ports")} == {
        f"127.0.0.1:{place.cluster.port} (HTTP) is served by the cluster in this home",
        f"127.0.0.1:{place.cluster.grpc_port} (gRPC) is served by the cluster in this home",
    }
    assert [one["text"] for one in of_area(report, "redis")][1:] == ["it keeps its data: every write"]
    assert len(of_area(report, "clocks")) == 2
    assert of_area(report, "server")[-1]["text"] == "it takes requests"
    assert of_area(report, "models")[0]["text"].startswith("1 usable in ")


def test_a_key_that_is_not_good_is_a_failure(place: Place) -> None:
    status, report = examined(**place.environment(PUNA_API_KEY="wrong"))

    assert status == 1
    assert "PUNA_API_KEY" in of_area(report, "nodes")[0]["advice"]


def test_without_a_cluster_it_finds_what_is_wrong_and_hides_secrets(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    (models / "good.gguf").write_bytes((ROOT / "models" / "demo.gguf").read_bytes())
    (models / "half-00001-of-00002.gguf").write_bytes(b"GGUF" + bytes(20))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        status, report = examined(
            PUNA_HOME=str(tmp_path),
            PUNA_HOST=f"127.0.0.1:{port}",
            PUNA_GRPC_HOST=f"127.0.0.1:{free_port()}",
            PUNA_API_KEY=SECRET,
            PUNA_REDIS_URL=f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0",
            PUNA_NUM_PARALEL="2",
            PUNA_QUEUE_WAIT_S="soon",
            OLLAMA_KEEP_ALIVE="3m",
            OLLAMA_NOPE="1",
        )

    text = json.dumps(report)
    assert (status, report["ok"]) == (1, False)
    assert SECRET not in text
    environment = of_area(report, "environment")
    assert environment[0] == {
        "area": "environment",
        "level": "fail",
        "text": "unknown setting PUNA_NUM_PARALEL",
        "advice": "did you mean PUNA_NUM_PARALLEL?",
    }
    assert any(one["text"].startswith("gateway: PUNA_QUEUE_WAIT_S") for one in environment)
    assert {"OLLAMA_KEEP_ALIVE counts as PUNA_KEEP_ALIVE", "OLLAMA_NOPE has no meaning here"} <= {
        one["text"] for one in environment
    }
    said = {one["text"].partition(":")[0]: one["level"] for one in of_area(report, "models")}
    assert said == {f"1 usable in {models}": "ok", "broken": "fail", "half": "fail"}
    assert any("CPU" in one["text"] and one["level"] == "ok" for one in of_area(report, "devices"))
    assert of_area(report, "redis")[0]["level"] == "fail"
    taken, free = of_area(report, "ports")
    assert taken["text"].endswith(f"(pid {os.getpid()})")
    assert (taken["level"], free["level"]) == ("fail", "ok")
    assert of_area(report, "server")[0]["level"] == "fail"
    settings = {one["name"]: one for one in report["settings"]}
    assert settings["PUNA_API_KEY"]["value"] == "(hidden)"
    assert settings["PUNA_KEEP_ALIVE"]["source"] == "ollama"


def test_an_empty_home_is_no_fault(tmp_path: Path) -> None:
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("PUNA_GRPC_HOST",)}
    done = run_puna("doctor", "--settings", PUNA_HOME=str(tmp_path / "none"), **ports)

    assert "models       none yet" in done.stdout
    assert "`puna up` starts its own" in done.stdout
    assert any(line.split()[:1] == ["PUNA_KEEP_ALIVE"] for line in done.stdout.splitlines())
    assert not (tmp_path / "none").exists()  # it changes nothing


@contextlib.contextmanager
def _sentinel(directory: Path, primary: int) -> Iterator[int]:
    """A real sentinel that watches a set of one server."""
    port = free_port()
    configuration = directory / "sentinel.conf"
    configuration.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor puna 127.0.0.1 {primary} 1\n")
    command = [str(embedded_redis_server()), str(configuration), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def test_sentinels_are_asked_each_for_itself(tmp_path: Path) -> None:
    primary, silent = free_port(), free_port()
    options = (
        "--port",
        str(primary),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(tmp_path),
        "--maxmemory-policy",
        "allkeys-lru",
    )
    server = subprocess.Popen([str(embedded_redis_server()), *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(primary), deadline_s=20, what="redis listens")
        with _sentinel(tmp_path, primary) as sentinel:
            wait_until(lambda: _answers(sentinel), deadline_s=20, what="the sentinel listens")
            url = f"redis+sentinel://127.0.0.1:{sentinel},127.0.0.1:{silent}/puna/0"
            _, report = examined(PUNA_HOME=str(tmp_path / "home"), PUNA_REDIS_URL=url)
    finally:
        server.kill()
        server.wait()

    said = {one["text"].partition(",")[0]: one["level"] for one in of_area(report, "redis")}
    assert said["1 of 2 sentinels of puna answer"] == "fail"
    assert said["it answers"] == "ok"
    assert said["maxmemory-policy is allkeys-lru"] == "warn"
    assert any(text.startswith(f"sentinel 127.0.0.1:{silent}") for text in said)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_engine_is_tested_apart_and_files_that_are_none_are_named(tmp_path: Path) -> None:
    paths = [str(ROOT / "models" / "demo.gguf"), str(tmp_path / "none.gguf")]
    command = [sys.executable, "-m", "runner", "self-test"]

    computed = subprocess.run([*command, "--model", paths[0]], cwd=ROOT, capture_output=True, text=True, check=False)
    files = subprocess.run(
        [*command, "--files"], cwd=ROOT, input=json.dumps(paths), capture_output=True, text=True, check=False
    )
    refused = subprocess.run([*command, "--model", paths[1]], cwd=ROOT, capture_output=True, text=True, check=False)

    report = json.loads(computed.stdout)
    assert (computed.returncode, report["computed"], report["trouble"]) == (0, True, "")
    said = [json.loads(line) for line in files.stdout.splitlines()]
    assert [bool(one["trouble"]) for one in said] == [False, True]
    assert refused.returncode == 1

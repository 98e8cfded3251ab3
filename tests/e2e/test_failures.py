"""Failures: each is reported clearly, and breaks nothing else."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster, start_cluster
from tests.ports import free_port
from tests.waiting import wait_until

ASK = {"model": "demo", "messages": [{"role": "user", "content": "What is Puna?"}], "temperature": 0}


def restarts_of(cluster: Cluster, service: str) -> int:
    """Restarts of a service as the supervisor recorded them."""
    restarts: int = json.loads((cluster.home / "run" / "puna.json").read_text())["services"][service]["restarts"]
    return restarts


def pids_of(cluster: Cluster) -> set[int]:
    """Process ids of the demo model's runners. One that failed is shown for a while longer."""
    found = (one for one in cluster.runners() if one["model"].startswith("demo"))
    return {one["pid"] for one in found if one["state"] != "error"}


def test_the_next_request_after_a_killed_runner_loads_a_new_one(cluster: Cluster, answers: dict[str, str]) -> None:
    first = cluster.post("/v1/chat/completions", ASK).json()
    (old,) = pids_of(cluster)
    os.kill(old, signal.SIGKILL)
    second = cluster.post("/v1/chat/completions", ASK).json()
    assert (
        first["choices"][0]["message"]["content"]
        == second["choices"][0]["message"]["content"]
        == answers["What is Puna?"]
    )
    wait_until(lambda: old not in pids_of(cluster), deadline_s=20, what="the dead runner is withdrawn")
    assert len(pids_of(cluster)) == 1


@pytest.mark.parametrize("service", ["discovery", "scheduler", "host", "gateway", "redis"])
def test_a_killed_service_comes_back_and_the_model_answers(
    service: str, cluster: Cluster, answers: dict[str, str]
) -> None:
    asked = cluster.post("/v1/chat/completions", ASK)
    assert asked.status_code == 200, asked.text
    # After a restart of discovery it is shown once its host has registered again.
    wait_until(lambda: bool(pids_of(cluster)), deadline_s=60, what="the warm runner is shown")
    runners = pids_of(cluster)
    killed, restarts = cluster.pid_of(service), restarts_of(cluster, service)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: cluster.pid_of(service) not in (0, killed), deadline_s=60, what=f"{service} is restarted")
    assert restarts_of(cluster, service) == restarts + 1

    def answered() -> bool:
        try:
            reply = cluster.post("/v1/chat/completions", ASK)
        except httpx.TransportError:
            return False
        return reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == answers["What is Puna?"]

    wait_until(answered, deadline_s=60, what=f"answers after {service} was killed")
    wait_until(lambda: pids_of(cluster) == runners, deadline_s=60, what="the warm runner is still the same")


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (
            "/api/chat",
            {"model": "nobody", "messages": [{"role": "user", "content": "x"}]},
            404,
            "model 'nobody' not found",
        ),
        (
            "/api/generate",
            {"model": "demo", "prompt": "x", "logprobs": True, "top_logprobs": 21},
            400,
            "top_logprobs must be between 0 and 20",
        ),
        (
            "/api/generate",
            {"model": "demo", "prompt": "x", "options": {"num_ctx": "5"}},
            400,
            'option "num_ctx" must be of type integer',
        ),
        ("/api/generate", {"model": "demo", "prompt": 5}, 400, "prompt"),
        ("/api/generate", {"prompt": "x"}, 400, "model is required"),
    ],
)
def test_bad_input_in_the_ollama_dialect(cluster: Cluster, path: str, body: object, status: int, text: str) -> None:
    answer = cluster.post(path, body)
    assert answer.status_code == status
    assert text in answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (ASK | {"model": "nobody"}, 404, "model_not_found"),
        (ASK | {"logprobs": True, "top_logprobs": 21}, 400, "invalid_value"),
        (ASK | {"max_tokens": "5"}, 400, "invalid_value"),
        (ASK | {"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "context_length_exceeded"),
    ],
)
def test_bad_input_in_the_openai_dialect(cluster: Cluster, body: object, status: int, code: str) -> None:
    answer = cluster.post("/v1/chat/completions", body)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_invalid_json_is_a_400(cluster: Cluster, path: str) -> None:
    answer = httpx.post(cluster.url + path, content=b'{"model": ', timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_truncated_model_file_is_named(cluster: Cluster) -> None:
    whole = (cluster.models / "demo.gguf").read_bytes()
    broken = cluster.models / "broken.gguf"
    broken.write_bytes(whole[: len(whole) // 2])
    try:
        answers = []

        def refused() -> bool:
            answers.append(
                cluster.post("/api/chat", {"model": "broken", "messages": [{"role": "user", "content": "x"}]})
            )
            return answers[-1].status_code == 500

        wait_until(refused, deadline_s=60, what="the broken file is known")
        assert "broken" in answers[-1].json()["error"]
        assert "truncated" in answers[-1].json()["error"]
    finally:
        broken.unlink()
    assert cluster.post("/v1/chat/completions", ASK).status_code == 200


def test_without_redis_nothing_loads_and_everything_says_why(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "home", PUNA_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    try:
        answer = cluster.post("/v1/chat/completions", ASK)
        assert answer.status_code == 503
        assert "state store" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
    finally:
        cluster.stop()

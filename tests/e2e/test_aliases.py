"""`puna alias` against a real cluster: a second name answers in every dialect, and is listed."""

import json
import os
import subprocess
import sys

import httpx

from tests.cluster import Cluster

TALK = [{"role": "user", "content": "What is Puna?"}]


def puna(cluster: Cluster, *words: str, expected: int = 0) -> str:
    """Run a command and return its output, or its error text if it has to fail."""
    environment = os.environ | {"PUNA_HOST": cluster.url, "PUNA_HOME": str(cluster.home)}
    command = [sys.executable, "-m", "cli.main", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expected, done.stderr
    return done.stderr if expected else done.stdout


def test_an_alias_is_set_asked_listed_and_removed(cluster: Cluster, answers: dict[str, str]) -> None:
    assert puna(cluster, "alias", "set", "fast", "demo") == "fast:latest is demo:latest\n"
    try:
        chat = {"model": "fast", "messages": TALK, "temperature": 0, "max_tokens": 200}
        body = {"options": {"temperature": 0}, "stream": False}
        openai = httpx.post(f"{cluster.url}/v1/chat/completions", json=chat, timeout=60).json()
        native = httpx.post(f"{cluster.url}/api/chat", json={**chat, **body}, timeout=60).json()
        anthropic = httpx.post(f"{cluster.url}/v1/messages", json=chat, timeout=60).json()
        said = [
            openai["choices"][0]["message"]["content"],
            native["message"]["content"],
            anthropic["content"][0]["text"],
        ]
        assert said == [answers["What is Puna?"]] * 3
        assert [openai["model"], native["model"], anthropic["model"]] == ["fast"] * 3
        assert "fast:latest" in puna(cluster, "models")
        (listed,) = json.loads(puna(cluster, "alias", "list", "--json"))["aliases"]
        assert listed == {"alias": "fast:latest", "model": "demo:latest", "exists": True}
        assert "itself" in puna(cluster, "alias", "set", "demo", "demo", expected=1)
        assert "not found" in puna(cluster, "alias", "set", "other", "nowhere", expected=3)
    finally:
        assert puna(cluster, "alias", "rm", "fast") == "fast:latest is no alias any more\n"
    assert httpx.post(f"{cluster.url}/api/show", json={"model": "fast"}).status_code == 404
    assert "no alias" in puna(cluster, "alias", "rm", "fast", expected=3)

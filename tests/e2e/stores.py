"""Requests about a cluster's models, for tests."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import ollama

from tests.cluster import Cluster

PIRATE = "Arr! Puna be one harbour for a whole fleet of GPUs, "
QUESTION = "What is Puna?"
MADE_SYSTEM = "You are a pirate."
ROOT = Path(__file__).resolve().parents[2]


def names(client: ollama.Client) -> dict[str, str]:
    """Every model and its digest."""
    return {str(model.model): str(model.digest) for model in client.list().models}


def runs(store: Cluster, name: str) -> bool:
    return any(model["name"] == name for model in httpx.get(store.url + "/api/ps", timeout=60).json()["models"])


def puna(store: Cluster, *words: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command line as people run it."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *words],
        capture_output=True, text=True, timeout=120, cwd=directory,
        env=os.environ | {"PUNA_HOST": store.url, "PYTHONPATH": str(ROOT)},
        check=False,
    )  # fmt: skip

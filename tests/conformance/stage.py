"""The clusters that the cases talk to, and what the cases know about them."""

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.cluster import Cluster, start_cluster, trained_answers
from tests.conformance.strict import COLD, DEADLINE_S, HURRIED_DEADLINE_S, POISON, TOKENS_PER_S
from tests.integration.runner.pictures import image_file, picture
from tests.waiting import wait_until
from tools.model_zoo import build, build_pair

ROOT = Path(__file__).resolve().parents[2]
MODELS = {"demo", "eyes", "embed_mean", "reranker", "coder", "plain", "refusing"}


@contextlib.contextmanager
def open_cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """The demo model and some of the zoo, open to everybody; how to reach it."""
    models = folder / "home" / "models"
    models.mkdir(parents=True)
    for name, called in (("embed_mean", ""), ("reranker", ""), ("dense", "coder"), ("dense_wide_head", "plain")):
        built = build(name, models)
        if called:
            built.rename(models / f"{called}.gguf")
    model, projector = build_pair("mrope", models)
    projector.rename(models / "eyes.mmproj.gguf")
    model.rename(models / "eyes.gguf")
    cluster = start_cluster(folder / "home")
    try:
        template = "{% if messages %}{{ raise_exception('not today') }}{% endif %}"
        refusing = {"model": "refusing", "from": "demo", "template": template}
        made = cluster.post("/api/create", refusing | {"stream": False})
        assert made.status_code == 200, made.text
        wait_until(lambda: _names(cluster, "any") >= MODELS, deadline_s=30, what="all models are known")
        yield {"url": cluster.url, "key": "any"}
    finally:
        cluster.stop()


@contextlib.contextmanager
def strict_cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """Keys, one slot, one place to wait, and an engine that is slow and can be killed."""
    models = folder / "home" / "models"
    models.mkdir(parents=True)
    for name, dialect in (("dense", "openai"), ("tied", "anthropic"), ("dense_wide_head", "ollama")):
        build(name, models).rename(models / f"victim-{dialect}.gguf")
    build("swa", models).rename(models / f"{COLD}.gguf")
    file = folder / "keys.json"
    key = _make_key(file, "--owner", "ada", "--scope", "infer", "--scope", "models:read", "--scope", "admin:cluster")
    limited = _make_key(file, "--owner", "cy", "--scope", "infer", "--rpm", "1")
    cluster = start_cluster(
        folder / "home",
        PUNA_API_KEYS_FILE=str(file),
        PUNA_API_KEY=key,
        PUNA_ENGINE="fake",
        PUNA_ENGINE_OPTIONS=json.dumps({"tokens_per_s": TOKENS_PER_S, "abort_on_seed": POISON}),
        PUNA_NUM_PARALLEL="1",
        PUNA_MAX_QUEUE="1",
        PUNA_REQUEST_TIMEOUT_S=str(DEADLINE_S),
    )
    try:
        _warm(cluster, key)
        yield {"url": cluster.url, "key": key, "limited_key": limited}
    finally:
        cluster.stop()


@contextlib.contextmanager
def hurried_cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """A deadline that no long answer of its slow engine can meet; nothing else happens there."""
    folder.mkdir(parents=True)
    cluster = start_cluster(
        folder / "home",
        PUNA_ENGINE="fake",
        PUNA_ENGINE_OPTIONS=json.dumps({"tokens_per_s": TOKENS_PER_S}),
        PUNA_REQUEST_TIMEOUT_S=str(HURRIED_DEADLINE_S),
    )
    try:
        _warm(cluster, "any")
        yield {"url": cluster.url, "key": "any"}
    finally:
        cluster.stop()


@contextlib.contextmanager
def tight_cluster(folder: Path) -> Iterator[dict[str, Any]]:
    """Its only device may take 1 MiB: nothing fits."""
    folder.mkdir(parents=True)
    cluster = start_cluster(folder / "home", PUNA_DEVICE_MAX_BYTES="cpu=1MiB", PUNA_DEVICE_OVERHEAD="cpu=0")
    try:
        yield {"url": cluster.url, "key": "any"}
    finally:
        cluster.stop()


STAGES = {"open": open_cluster, "strict": strict_cluster, "hurried": hurried_cluster, "tight": tight_cluster}


def known_facts(**stages: dict[str, Any]) -> dict[str, Any]:
    """Return the facts for cases: addresses of the clusters, lessons of the demo model, two images."""
    taught = json.loads((ROOT / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8"))["questions"]
    return {
        "stages": stages,
        "answers": trained_answers(),
        "lessons": {lesson["id"]: lesson for lesson in taught},
        "images": [base64.b64encode(image_file(picture(seed))).decode() for seed in (1, 2)],
    }


def _warm(cluster: Cluster, key: str) -> None:
    body = {"model": "demo", "prompt": "x", "raw": True, "stream": False, "options": {"num_predict": 1}}

    def answers() -> bool:
        return cluster.post("/api/generate", body, headers={"x-api-key": key}).status_code == 200

    wait_until(answers, deadline_s=60, what="the fake engine answers")


def _names(cluster: Cluster, key: str) -> set[str]:
    models = httpx.get(cluster.url + "/api/tags", headers={"x-api-key": key}, timeout=5).json()["models"]
    return {model["name"].partition(":")[0] for model in models}


def _make_key(file: Path, *words: str) -> str:
    command = [sys.executable, "-m", "cli.main", "keys", "create", *words, "--file", str(file), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    key: str = json.loads(done.stdout)["key"]
    return key

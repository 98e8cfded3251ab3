"""Renders the overlays as `kubectl apply -k` would, and finds things in what comes out."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))
RENDERED = ROOT / "build" / "artifacts" / "kubernetes"
# Older ones carry a kustomize that does not know `patches` with paths, `labels` and components.
KUSTOMIZE_MAJOR_MIN = 4

Object = Mapping[str, Any]


@cache
def kustomize() -> str:
    """The program; skips the test where there is none that is new enough."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed (make deps-system)")
    version = subprocess.run([kubectl, "version", "--client"], capture_output=True, text=True, check=False).stdout
    found = [line.rpartition("v")[2] for line in version.splitlines() if "kustomize" in line.lower()]
    if not found or int(found[0].split(".")[0]) < KUSTOMIZE_MAJOR_MIN:
        pytest.skip(f"kubectl brings no kustomize of version {KUSTOMIZE_MAJOR_MIN} or newer")
    return kubectl


@cache
def rendered(folder: str, *, name: str = "") -> tuple[Object, ...]:
    """Every object of a folder below deploy/kubernetes, left in build/artifacts, too, by its own name or this one."""
    done = subprocess.run(
        [kustomize(), "kustomize", str(MANIFESTS / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    RENDERED.mkdir(parents=True, exist_ok=True)
    (RENDERED / f"{name or folder.replace('/', '-')}.yaml").write_text(done.stdout)
    return tuple(yaml.safe_load_all(done.stdout))


def pods(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Every pod template with the name of what it belongs to."""
    for one in objects:
        template = one.get("spec", {}).get("template")
        if template is not None:
            yield f"{one['kind']} {one['metadata']['name']}", template


def containers(pod: Object) -> Iterator[Object]:
    """Those that run, and those that run before them."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def settings_of(container: Object, objects: tuple[Object, ...]) -> dict[str, str]:
    """The environment of a container, config maps included. What comes from the pod's own fields is left out."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        name = source["configMapRef"]["name"]
        values |= next(one for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name)["data"]
    return values | {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}

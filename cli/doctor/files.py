"""Disks, model files and limits."""

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from cli.core.doctor.findings import Finding, ok
from cli.core.doctor.machine import judge_disk, judge_models, judge_open_files
from cli.doctor.children import run_runner
from common.errors import BadModelFile
from runner.core.store.manifest import MediaType, parse_manifest
from runner.host.models.sources import Source, find_sources
from runner.host.store.blobs import BlobStore
from runner.host.store.manifests import ManifestStore

_CHECK_WITHIN_S = 300.0
_OF_ENGINE = frozenset({MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER})


def look_at_disks(home: Path, models: Path) -> Iterator[Finding]:
    """Where state and models are written."""
    for what, path in (("PUNA_HOME", home), ("PUNA_MODELS", models)):
        existing = _existing(path)
        try:
            usage = shutil.disk_usage(existing)
        except OSError:
            continue  # gone in this moment
        yield judge_disk(
            what=what,
            path=str(path),
            free_bytes=usage.free,
            total_bytes=usage.total,
            writable=os.access(existing, os.W_OK | os.X_OK),
        )


def look_at_models(directory: Path) -> Iterator[Finding]:
    """Every model of a directory: its files are there, and are what they say. Nothing of the weights is read."""
    if not directory.is_dir():
        yield ok("models", f"none yet: there is no {directory}")
        return
    manifests, blobs = ManifestStore(directory / "manifests"), BlobStore(directory / "blobs")
    troubles: dict[str, str] = {}
    files: dict[str, list[Path]] = {}
    for source in find_sources(directory, manifests, blobs):
        try:
            files[source.name] = _files(source, manifests, blobs)
        except (BadModelFile, OSError) as error:
            troubles[source.name] = str(error)
    said = _check([path for paths in files.values() for path in paths])
    for name, paths in files.items():
        troubles[name] = next((said[str(path)] for path in paths if said[str(path)]), "")
    yield from judge_models(troubles, directory=str(directory))


def look_at_limits() -> Iterator[Finding]:
    """What this user may have open."""
    yield judge_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def _files(source: Source, manifests: ManifestStore, blobs: BlobStore) -> list[Path]:
    if source.stored is None:
        if len(source.files) < source.announced:
            raise BadModelFile(f"{len(source.files)} of its {source.announced} files are here")
        return [stamp.path for stamp in source.files]
    manifest = parse_manifest(manifests.read(source.stored) or b"")
    for layer in manifest.blobs():
        size = blobs.size(layer.digest)
        if size != layer.size_bytes:
            what = "is missing" if size is None else f"has {size} bytes, not {layer.size_bytes}"
            raise BadModelFile(f"its blob {layer.digest[:12]} {what}")
    return [blobs.path(layer.digest) for layer in manifest.layers if layer.media_type in _OF_ENGINE]


def _check(paths: list[Path]) -> dict[str, str]:
    """By path: the engine's reader's complaint. A file that ends the process is one of those it cannot read."""
    said: dict[str, str] = {}
    left = [str(path) for path in paths]
    while left:
        result = run_runner("self-test", "--files", within_s=_CHECK_WITHIN_S, stdin=json.dumps(left))
        said |= {str(one["path"]): str(one["trouble"]) for one in result.objects}
        left = [path for path in left if path not in said]
        if left:
            said[left.pop(0)] = f"reading it ends the reader ({result.last_line or result.exit_code})"
    return said


def _existing(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.exists())

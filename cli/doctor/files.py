"""Disks, model files and limits."""

import asyncio
import json
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cli.core.doctor.assessments import CheckedModels, assess_disk, assess_open_files
from cli.core.doctor.findings import Finding
from cli.doctor.children import run_runner
from common.errors import BadModelFile
from runner.core.model.file_names import is_own_name
from runner.core.store.manifest import MediaType, parse_manifest
from runner.host.files.blobs import BlobStore
from runner.host.files.file_threads import FileStandsStill, FileThreads
from runner.host.files.manifests import ManifestStore
from runner.host.models.finding import Finder
from runner.host.models.sources import ModelSource

_CHECK_WITHIN_S = 300.0
_ANSWER_WITHIN_S = 5.0  # of one question to the file system
_OF_ENGINE = frozenset({MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER})


def inspect_disks(home: Path, models: Path) -> Iterator[Finding]:
    """Check the disks of the state and of the models."""
    for what, path in (("PUNA_HOME", home), ("PUNA_MODELS", models)):
        existing = _existing(path)
        try:
            usage = shutil.disk_usage(existing)
        except OSError:
            continue  # gone in this moment
        yield assess_disk(
            what=what,
            path=str(path),
            free_bytes=usage.free,
            total_bytes=usage.total,
            writable=os.access(existing, os.W_OK | os.X_OK),
        )


def check_models(directory: Path) -> CheckedModels:
    """Check every model of a directory: its files are there, and are what they say. Nothing of the weights is read."""
    manifests, blobs = ManifestStore(directory / "manifests"), BlobStore(directory / "blobs")
    troubles: dict[str, str] = {}
    files: dict[str, list[Path]] = {}
    found = asyncio.run(_find(directory, manifests, blobs))
    for source in found or ():
        try:
            files[source.name] = _files(source, manifests, blobs)
        except (BadModelFile, OSError) as error:
            troubles[source.name] = str(error)
    said = _check([path for paths in files.values() for path in paths])
    for name, paths in files.items():
        troubles[name] = next((said[str(path)] for path in paths if said[str(path)]), "")
    renamed = {
        source.name: source.paths[0].name
        for source in found or ()
        if source.stored is None and source.name in files and not is_own_name(source.paths[0])
    }
    return CheckedModels(troubles=troubles, renamed=renamed, answers=found is not None)


async def _find(directory: Path, manifests: ManifestStore, blobs: BlobStore) -> list[ModelSource] | None:
    """Find every model; one whose first bytes do not come is in trouble, so that no process waits for them."""
    sources = await Finder(directory, manifests, blobs, silence_s=_ANSWER_WITHIN_S).find(())
    threads = FileThreads(silence_s=_ANSWER_WITHIN_S)
    checked: list[ModelSource] = []
    for source in sources or ():
        trouble = source.trouble
        for path in source.paths if source.stored is None and not trouble else ():
            try:
                await threads.read_first(path)
            except FileStandsStill as error:
                trouble = error.message
            except OSError as error:
                trouble = f"{path}: {error.strerror}"
        checked.append(replace(source, trouble=trouble))
    return checked if sources is not None else None


def inspect_limits() -> Iterator[Finding]:
    """Check the limits of this user."""
    yield assess_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))


def _files(source: ModelSource, manifests: ManifestStore, blobs: BlobStore) -> list[Path]:
    if source.trouble:
        raise BadModelFile(source.trouble)
    if source.stored is None:
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

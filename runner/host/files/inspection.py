"""Inspection of model files in throw-away processes; results are kept by digest."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from google.protobuf import json_format

from common.errors import BadModelFile, ModelUnavailable
from protos import cluster_pb2
from runner.core.model.description import PROJECTOR_ARCHITECTURE
from runner.host.files.file_threads import STUCK_MAX
from runner.host.home import write_durably
from runner.host.processes.children import run_child
from runner.host.processes.process import ProcessHandle

INSPECT_TIMEOUT_S = 20.0
# Part of the cache's file names: raise it when inspection finds or refuses more than before.
INSPECTION_VERSION = 3
CRASHES_MAX = 2  # of the process that looked; then the file is given up
ADAPTER_KIND = "adapter"  # of general.type


class Inspector:
    """Looks at files, one process each."""

    def __init__(self, cache_directory: Path) -> None:
        """`cache_directory` is made."""
        self._cache = cache_directory
        self._cache.mkdir(parents=True, exist_ok=True)
        self._crashes: Counter[str] = Counter()
        self._left: dict[str, ProcessHandle] = {}  # children that even SIGKILL does not end

    async def look_ahead(self, paths: Sequence[Path], key: str) -> bytes:
        """Return what a child says of the headers, before gigabytes are read for a digest. `key` names the content.

        Raises:
            BadModelFile, ModelUnavailable: as `describe`.
        """
        return await self._ask(paths, key, kind="")

    async def describe(
        self, paths: Sequence[Path], digest: str, *, ahead: bytes | None = None
    ) -> cluster_pb2.ModelDescription:
        """Return the description of a model, in one file or several; `ahead` is what `look_ahead` returned.

        Raises:
            BadModelFile: the child refuses the file, or it crashed twice over it.
            ModelUnavailable: the child crashed or ran over its time.
        """
        description = await self._look(paths, digest, kind="", ahead=ahead)
        if general_type(description) == ADAPTER_KIND:
            raise BadModelFile(f"{paths[0]}: an adapter changes another model and answers nothing by itself")
        return description

    async def describe_part(self, path: Path, digest: str) -> cluster_pb2.ModelDescription:
        """Describe any GGUF: a model, a part of one, a projector, an adapter.

        Raises:
            BadModelFile, ModelUnavailable: as `describe`.
        """
        return await self._look([path], digest, kind="part")

    async def read_header(self, paths: Sequence[Path]) -> bytes:
        """Everything that the header of a GGUF says, as JSON {"metadata", "tensors"}; it is not kept.

        Raises:
            BadModelFile: the child refuses the file.
            ModelUnavailable: the child crashed or ran over its time.
        """
        words = ["--header", *(str(path) for path in paths)]
        result = await run_child("inspect", words, timeout_s=INSPECT_TIMEOUT_S)
        if result.exit_code == 0:
            return result.output
        raise BadModelFile(_refusal(result.output) or f"{paths[0]}: the inspection failed: {result.failure()}")

    async def _look(
        self, paths: Sequence[Path], digest: str, *, kind: str, ahead: bytes | None = None
    ) -> cluster_pb2.ModelDescription:
        cached = self._cache / f"{digest}{'-' if kind else ''}{kind}-v{INSPECTION_VERSION}.json"
        description = cluster_pb2.ModelDescription()
        try:
            return json_format.Parse(await asyncio.to_thread(cached.read_bytes), description)
        except (OSError, json_format.ParseError):
            description.Clear()
        output = ahead if ahead is not None else await self._ask(paths, digest, kind=kind)
        json_format.Parse(output, description)
        await asyncio.to_thread(write_durably, cached, output)
        return description

    async def _ask(self, paths: Sequence[Path], key: str, *, kind: str) -> bytes:
        if self._crashes[key] >= CRASHES_MAX:
            raise BadModelFile(f"{paths[0]}: the inspection crashed {CRASHES_MAX} times; the file is not used")
        self._left = {name: process for name, process in self._left.items() if not process.exited.is_set()}
        if key in self._left or len(self._left) >= STUCK_MAX:
            raise ModelUnavailable(f"{paths[0]}: it does not answer")
        words = [*(["--part"] if kind else []), *(str(path) for path in paths)]
        result = await run_child("inspect", words, timeout_s=INSPECT_TIMEOUT_S)
        if result.exit_code == 0:
            return result.output
        if result.left is not None:
            self._left[key] = result.left
        refusal = _refusal(result.output)
        if refusal:
            raise BadModelFile(refusal)
        if result.exit_code is not None and result.exit_code < 0:
            self._crashes[key] += 1
        raise ModelUnavailable(f"{paths[0]}: the inspection failed: {result.failure()}")


def metadata_of(description: cluster_pb2.ModelDescription) -> Mapping[str, object]:
    """Its keys as values."""
    keys: Mapping[str, object] = orjson.loads(description.metadata_json or "{}")
    return keys


def general_type(description: cluster_pb2.ModelDescription) -> str:
    """Return general.type of a header; files of the usual kind often leave it out."""
    return str(metadata_of(description).get("general.type", ""))


def is_projector(description: cluster_pb2.ModelDescription) -> bool:
    """Return True for the half of a vision or sound model that reads the other kind of input."""
    return description.architecture == PROJECTOR_ARCHITECTURE


def sees(description: cluster_pb2.ModelDescription) -> bool:
    """Return True for a projector of images, not only of sounds."""
    return metadata_of(description).get("clip.has_vision_encoder") is True


def _refusal(output: bytes) -> str:
    try:
        answer = orjson.loads(output)
    except ValueError:
        return ""
    return str(answer.get("message", "")) if isinstance(answer, Mapping) else ""

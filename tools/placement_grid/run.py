"""Goes through the grid: count, decide, limit the devices, load, look at what they gave out."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.limited_device import LimitedDevice, limited_device
from tests.waiting import wait_until
from tools.model_zoo import Recipe, build
from tools.placement_grid.configurations import DEVICE_BYTES_MAX, Configuration, recipes
from tools.placement_grid.predictions import ModelFacts, file_and_cache, scaled_file, shared_out

ROOT = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
FREED_DEADLINE_S = 10.0
# Without its three further copies of the graph a pipelined layout holds far less than it was counted for.
PIPELINE_KEPT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One configuration with everything that was said about it, and what happened. Bytes are by device."""

    configuration: Configuration
    measured: tuple[int, ...]
    by_file: tuple[int, ...]  # file × 1.2
    by_file_and_cache: tuple[int, ...]
    free: tuple[int, ...]  # what the devices had left
    loaded: bool  # with that, and as asked: the engine does without a pipeline or a draft model that does not fit
    real: tuple[int, ...]  # what the devices gave out, once they had enough
    failure: str = ""  # of a load with enough memory
    seconds: float = 0.0


@dataclass(slots=True)
class Worker:
    """The process that counts and loads; another one if it dies."""

    _process: "subprocess.Popen[bytes] | None" = field(default=None)

    def ask(self, **question: Any) -> dict[str, Any]:
        """One answer; "died" if the question killed it."""
        process = self._process
        if process is None or process.poll() is not None:
            self.close()
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.placement_grid.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert process.stdin is not None  # asked for above
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(question) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return {"died": process.wait()}
        answer: dict[str, Any] = orjson.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process:  # closes the pipes
                self._process.kill()


@contextmanager
def devices(count: int) -> Iterator[list[LimitedDevice]]:
    """So many lent devices; afterwards they are gone."""
    with ExitStack() as stack:
        yield [stack.enter_context(limited_device(mib=DEVICE_BYTES_MAX / MIB)) for _ in range(count)]


def run_grid(configurations: Sequence[Configuration], directory: Path, *, say: Any = None) -> list[Cell]:
    """Every cell. `directory` keeps the model files."""
    known = {recipe.name: recipe for recipe in recipes()}
    names = {name for one in configurations for name in (one.model, one.draft) if name}
    paths = {name: build(known[name], directory) for name in names}
    worker = Worker()
    cells = []
    with devices(max(len(one.devices.shares) for one in configurations)) as lent:
        try:
            for configuration in configurations:
                cell = _run(configuration, known[configuration.model], paths, worker, lent)
                cells.append(cell)
                if say is not None:
                    say(cell)
        finally:
            worker.close()
    return cells


def _run(
    configuration: Configuration,
    recipe: Recipe,
    paths: Mapping[str, Path],
    worker: Worker,
    lent: Sequence[LimitedDevice],
) -> Cell:
    start_s = time.monotonic()
    counts = configuration.devices.layer_counts(configuration.blocks)
    used = lent[: len(counts)]
    path = paths[configuration.model]
    drafts = [paths[configuration.draft]] if configuration.draft else []
    layout = _layout(configuration, counts, used)
    asked = {"model": str(path), "draft": [str(draft) for draft in drafts], "layout": layout}
    report = worker.ask(do="measure", **asked)
    measured = tuple(_total(device) for device in report.get("devices", [{}] * len(counts)))
    free = tuple(int(count * room) for count, room in zip(measured, configuration.room, strict=True))
    for device, left in zip(used, free, strict=True):
        device.take(leave_bytes=left)
    first = _load(worker, asked, used)
    for device in used:
        device.give_back()
    pipeline_dropped = configuration.devices.pipeline and sum(first.real) < PIPELINE_KEPT * sum(measured)
    as_asked = bool(first.real) and not first.without and not pipeline_dropped
    second = first if as_asked else _load(worker, asked, used)
    file_bytes = sum(file.stat().st_size for file in (path, *drafts))
    facts = ModelFacts(file_bytes=file_bytes, embedding_length=recipe.embedding, kv_heads=recipe.kv_heads)
    context_tokens = configuration.context_tokens * configuration.slots
    return Cell(
        configuration=configuration,
        measured=measured,
        by_file=shared_out(scaled_file(facts), counts, configuration.blocks + 1),
        by_file_and_cache=shared_out(
            file_and_cache(facts, context_tokens=context_tokens), counts, configuration.blocks + 1
        ),
        free=free,
        loaded=as_asked,
        real=second.real,
        failure=second.failure or second.without if not report.get("died") else "counting killed the process",
        seconds=time.monotonic() - start_s,
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    real: tuple[int, ...]  # empty: it did not load
    failure: str
    without: str  # reason why the draft model is not loaded


def _load(worker: Worker, asked: dict[str, Any], used: Sequence[LimitedDevice]) -> _Outcome:
    answer = worker.ask(do="load", **asked)
    real: tuple[int, ...] = ()
    failure = ""
    if not answer.keys() - {"without"}:
        real = tuple(device.used_bytes() for device in used)
        worker.ask(do="unload")
    else:
        failure = str(answer.get("why") or f"the process died: {answer}")
    for device in used:
        wait_until(lambda one=device: one.used_bytes() == 0, deadline_s=FREED_DEADLINE_S, what="its memory is free")  # type: ignore[misc]
    return _Outcome(real, failure, str(answer.get("without", "")))


def _layout(configuration: Configuration, counts: Sequence[int], used: Sequence[LimitedDevice]) -> str:
    layout = {
        "devices": [
            {"device_id": f"gpu-{index}", "layer_count": count, "rpc_address": device.address}
            for index, (count, device) in enumerate(zip(counts, used, strict=True))
        ],
        "context_tokens": configuration.context_tokens,
        "slots": configuration.slots,
        "batch_tokens": configuration.batch_tokens,
        "cache_type_k": configuration.cache_type,
        "cache_type_v": configuration.cache_type,
        "pipeline": configuration.devices.pipeline,
        "rollback_tokens": configuration.rollback_tokens,
        "output_on_host": configuration.devices.output_on_host,
        "threads": 1,
    }
    return orjson.dumps(layout).decode()


def _total(device: dict[str, Any]) -> int:
    return sum(int(device.get(f"{name}_bytes", 0)) for name in ("weights", "cache", "graph", "projector"))

"""A process that counts and loads configurations one after another, as runners do. JSON lines in, JSON lines out.

One process for many configurations, because most of a runner's start is the interpreter. A configuration that kills it
ends this process; the caller notices, and starts another one.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import orjson
from google.protobuf import json_format

from common.errors import PunaError
from runner.core.model.model_files import ModelFiles
from runner.engine.batched.engine import BatchedEngine
from runner.engine.contract.engine import LoadedModel, LoadProgress, StepReport
from runner.measure import measure
from runner.serve.converters import parse_layout

LOAD_TIMEOUT_S = 120.0
UNLOAD_TIMEOUT_S = 30.0


class _Load:
    """Listens to one load."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.draft_off_reason = ""
        self.error: BaseException | None = None

    def load_progressed(self, progress: LoadProgress) -> None:
        """Ignore progress."""

    def loaded(self, model: LoadedModel) -> None:
        """Signal the end of a successful load; what is held is asked of the devices."""
        assert model.speculation is not None, "the engine guesses"
        self.draft_off_reason = model.speculation.draft_off_reason
        self.over.set()

    def load_failed(self, error: PunaError) -> None:
        """Signal the end of a failed load."""
        self.error = error
        self.over.set()

    def stepped(self, report: StepReport) -> None:
        """There are no requests."""

    def died(self, error: BaseException) -> None:
        """Signal that the engine broke."""
        self.error = error
        self.over.set()


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the engine and the log speak on standard output
    engine: BatchedEngine | None = None
    for line in sys.stdin.buffer:
        asked = orjson.loads(line)
        answer: dict[str, Any] = {}
        match asked["do"]:
            case "measure":
                report = measure(_files(asked), parse_layout(asked["layout"]), rpc_endpoints=[])
                answer = json_format.MessageToDict(report, preserving_proto_field_name=True)
            case "load":
                engine, answer = _load(asked)
            case "unload":
                assert engine is not None, "loaded before"
                _unload(engine)
        answers.write(orjson.dumps(answer) + b"\n")
        answers.flush()


def _load(asked: dict[str, Any]) -> tuple[BatchedEngine | None, dict[str, Any]]:
    """Return the engine and what it does without, or the failure."""
    listener = _Load()
    engine = BatchedEngine(_files(asked), parse_layout(asked["layout"]))
    engine.start(listener)
    if not listener.over.wait(LOAD_TIMEOUT_S):
        return engine, {"why": f"no end of the load within {LOAD_TIMEOUT_S:g} s"}
    if listener.error is not None:
        _unload(engine)
        return None, {"why": str(listener.error)}
    return engine, {"without": listener.draft_off_reason} if listener.draft_off_reason else {}


def _unload(engine: BatchedEngine) -> None:
    """Free the devices, unless the engine's thread does not end."""
    engine.stop()
    if engine.join(UNLOAD_TIMEOUT_S):
        engine.close()


def _files(asked: dict[str, Any]) -> ModelFiles:
    return ModelFiles(model=Path(asked["model"]), draft=tuple(Path(path) for path in asked["draft"]))


if __name__ == "__main__":
    main()

"""Notes of a host about each runner, with which the next host can adopt it."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import orjson
from google.protobuf import json_format

from common.paths import set_aside
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.model.model_files import ModelFiles
from runner.host.home import write_durably
from runner.host.runners.runner_spec import RunnerSpec

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerNote:
    """One runner: its start parameters, and what identifies its process."""

    start_ticks: int  # with the record's pid: no other process has both
    socket_path: str  # empty where it listens on TCP
    log_path: str
    model_path: str
    record: cluster_pb2.RunnerRecord  # placement, model, layout, pid, addresses, load options; its status is not kept
    planned: cluster_pb2.MemoryReport

    def spec(self) -> RunnerSpec:
        """Return the spec that the runner was started with, as far as it is kept."""
        return RunnerSpec(record=self.record, files=ModelFiles(model=Path(self.model_path)), planned=self.planned)


def write_note(path: Path, note: RunnerNote) -> None:
    """Keep a note durably."""
    record = json_format.MessageToDict(note.record, preserving_proto_field_name=True)
    record.pop("status", None)
    asked = record.pop("asked", None)
    content = {
        "pid": note.record.pid,
        "start_ticks": note.start_ticks,
        "socket_path": note.socket_path,
        "log_path": note.log_path,
        "model_path": note.model_path,
        "record": record,
        "planned": json_format.MessageToDict(note.planned, preserving_proto_field_name=True),
    }
    if asked is not None:  # beside the record: the version before ends runners whose record it cannot read
        content["asked"] = asked
    write_durably(path, orjson.dumps(content))


def read_notes(directory: Path) -> dict[Path, RunnerNote]:
    """Read every note of an earlier host. What cannot be read is logged and set aside: nothing can be adopted by it."""
    notes: dict[Path, RunnerNote] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            content = orjson.loads(path.read_bytes())
            record = json_format.ParseDict(content["record"], cluster_pb2.RunnerRecord(), ignore_unknown_fields=True)
            if asked := content.get("asked"):
                json_format.ParseDict(asked, record.asked, ignore_unknown_fields=True)
            notes[path] = RunnerNote(
                start_ticks=int(content["start_ticks"]),
                socket_path=str(content["socket_path"]),
                log_path=str(content["log_path"]),
                model_path=str(content["model_path"]),
                record=record,
                planned=json_format.ParseDict(
                    content["planned"], cluster_pb2.MemoryReport(), ignore_unknown_fields=True
                ),
            )
        except (OSError, ValueError, KeyError, TypeError, json_format.ParseError) as error:
            log.warning("runner.note_unreadable", path=str(path), text=str(error))
            with contextlib.suppress(OSError):
                set_aside(path)
    return notes

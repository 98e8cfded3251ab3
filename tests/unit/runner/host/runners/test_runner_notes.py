"""Notes of a host about a runner: they outlive the host, and the version before and the next can read them."""

from pathlib import Path

import orjson
from google.protobuf import json_format

from protos import cluster_pb2
from runner.host.runners.runner_notes import RunnerNote, read_notes, write_note

ASKED = cluster_pb2.LoadAsked(context_tokens=768, num_gpu=0, threads=1)


def written(directory: Path, asked: cluster_pb2.LoadAsked | None) -> Path:
    record = cluster_pb2.RunnerRecord(
        placement=cluster_pb2.PlacementRef(placement_id="p", generation=2),
        pid=1,
        model_name="m:latest",
        model_digest="d",
        layout=cluster_pb2.Layout(context_tokens=768, slots=1, batch_tokens=64, threads=1),
        asked=asked,
    )
    note = RunnerNote(
        start_ticks=2, socket_path="s", log_path="l", model_path="m", record=record,
        planned=cluster_pb2.MemoryReport(),
    )  # fmt: skip
    path = directory / "p.json"
    write_note(path, note)
    return path


def test_what_a_runner_was_loaded_for_outlives_its_host(tmp_path: Path) -> None:
    path = written(tmp_path, ASKED)
    note = read_notes(tmp_path)[path]
    assert note.record.asked == ASKED
    assert note.spec().record.asked == ASKED


def test_without_load_options_there_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, None)
    note = read_notes(tmp_path)[path]
    assert not note.record.HasField("asked")
    assert not note.spec().record.HasField("asked")


def test_the_version_before_can_read_the_record_and_adopts_the_runner(tmp_path: Path) -> None:
    """It knows the fields 1 to 8 of a record, and removes a note with any other."""
    known = {field.name for field in cluster_pb2.RunnerRecord.DESCRIPTOR.fields if field.number <= 8}
    assert set(orjson.loads(written(tmp_path, ASKED).read_bytes())["record"]) <= known


def test_what_a_later_version_adds_to_a_note_does_not_cost_the_runner(tmp_path: Path) -> None:
    path = written(tmp_path, ASKED)
    content = orjson.loads(path.read_bytes())
    for part in (content, content["record"], content["record"]["layout"], content["planned"], content["asked"]):
        part["later"] = 1
    path.write_bytes(orjson.dumps(content))
    note = read_notes(tmp_path)[path]
    assert note.record.asked == ASKED
    assert json_format.MessageToDict(note.record.layout)["contextTokens"] == 768

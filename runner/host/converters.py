"""Protos to the core's values."""

from dataclasses import replace
from pathlib import Path

from protos import cluster_pb2
from runner.core.devices import CPU_ID
from runner.core.model_files import ModelFiles
from runner.core.promises import Need
from runner.host.runner_notes import RunnerNote
from runner.host.runner_spec import RunnerSpec


def to_need(report: cluster_pb2.MemoryReport) -> Need:
    """Bytes by device; what lies in host RAM counts for the CPU."""
    weights: dict[str, int] = {}
    later: dict[str, int] = {}
    for device_id, memory in [(CPU_ID, report.host), *((memory.device_id, memory) for memory in report.devices)]:
        weights[device_id] = weights.get(device_id, 0) + memory.weights_bytes
        later[device_id] = later.get(device_id, 0) + memory.cache_bytes + memory.graph_bytes
    return Need(weights_bytes=weights, later_bytes=later)


def less(need: Need, freed: Need) -> Need:
    """What is needed beyond what another runner gives back."""
    return Need(
        weights_bytes={
            device: max(0, count - freed.weights_bytes.get(device, 0)) for device, count in need.weights_bytes.items()
        },
        later_bytes={
            device: max(0, count - freed.later_bytes.get(device, 0)) for device, count in need.later_bytes.items()
        },
    )


def with_files(spec: RunnerSpec, files: ModelFiles, name: str) -> RunnerSpec:
    """The spec with the files that its digests name."""
    return replace(spec, files=files, model_name=spec.model_name or name)


def spec_from_note(note: RunnerNote) -> RunnerSpec:
    """What an adopted runner was started with."""
    record = note.record
    return RunnerSpec(
        placement_id=record.placement.placement_id,
        generation=record.placement.generation,
        model_name=record.model_name,
        model_digest=record.model_digest,
        files=ModelFiles(model=Path(note.model_path)),
        layout=record.layout,
        planned=note.planned,
    )

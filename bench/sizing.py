"""Memory of models of usual shapes on a device, counted by the engine: `python -m bench.sizing` (a minute).

Nothing is loaded: `runner measure` reads the header of a file of the true size without content, and counts for a device
of llama.cpp's RPC server, which the engine treats as it treats a GPU. Writes bench/results/<date>-sizing.json and the
table of docs/sizing.md.
"""

import datetime
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock

import gguf

from bench.machine import describe_commit, describe_machine
from tests.limited_device import LimitedDevice, limited_device
from tools.generated import between
from tools.model_zoo import writer
from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.catalogue import shape
from tools.model_zoo.recipe import WeightType

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
DOCUMENT = ROOT / "docs" / "sizing.md"
BEGIN = "<!-- counted: python -m bench.sizing -->"
END = "<!-- end of counted -->"
MIB = 1024 * 1024
DEVICE_MIB = 128 * 1024
# Contexts, slots and cache types that show what each of them costs.
SIZES = (
    (4096, 1, "f16"),
    (8192, 1, "f16"),
    (32768, 1, "f16"),
    (131072, 1, "f16"),
    (8192, 4, "f16"),
    (8192, 8, "f16"),
    (8192, 8, "q8_0"),
    (8192, 8, "q4_0"),
)
MODELS = (("1b", WeightType.Q8_0), ("8b", WeightType.Q8_0), ("8b", WeightType.F16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One model in one size."""

    model: str
    weights_type: str
    context_tokens: int
    slots: int
    cache_type: str
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int
    host_bytes: int


def measure(file: Path, layers: int, size: tuple[int, int, str], device: LimitedDevice) -> dict[str, Any]:
    """Return the bytes that the engine counts with all layers on the device."""
    context, slots, cache = size
    layout = {
        "devices": [{"device_id": "gpu", "layer_count": layers, "rpc_address": device.address}],
        "context_tokens": context,
        "slots": slots,
        "cache_type_k": cache,
        "cache_type_v": cache,
    }
    command = [sys.executable, "-m", "runner", "measure", "--model", str(file), "--layout", json.dumps(layout)]
    done = subprocess.run([*command, "--rpc", device.address], capture_output=True, text=True, check=True, cwd=ROOT)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def count() -> list[Counted]:
    """All models in all sizes."""
    counted = []
    with tempfile.TemporaryDirectory() as folder, limited_device(mib=DEVICE_MIB) as device:
        for name, weights in MODELS:
            recipe = replace(shape(name), weights=weights, name=f"{name}-{weights.value}")
            with mock.patch.object(writer, "_append_tensors", _leave_out):
                file = writer.write_model(recipe, Path(folder))
            for size in SIZES:
                report = measure(file, recipe.layers + 1, size, device)
                [place] = report["devices"]
                one = Counted(
                    model=name,
                    weights_type=weights.value,
                    context_tokens=size[0],
                    slots=size[1],
                    cache_type=size[2],
                    host_bytes=sum(int(value) for key, value in report["host"].items() if key in _CLASSES),
                    **{key: int(place.get(key, 0)) for key in _CLASSES},
                )
                print(one, file=sys.stderr)
                counted.append(one)
    return counted


_PARTS = ("weights", "cache", "graph", "device", "host RAM")
_CLASSES = ("weights_bytes", "cache_bytes", "graph_bytes")


def table(counted: list[Counted]) -> str:
    """As docs/sizing.md shows it."""
    lines = [
        f"| model | weights | num_ctx | slots | cache | {' | '.join(f'{part} MiB' for part in _PARTS)} |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for one in counted:
        parts = (one.weights_bytes, one.cache_bytes, one.graph_bytes, _on_device(one), one.host_bytes)
        figures = " | ".join(f"{part / MIB:,.0f}" for part in parts)
        lines.append(
            f"| {one.model} | {one.weights_type} | {one.context_tokens} | {one.slots} | {one.cache_type} | {figures} |"
        )
    return "\n".join(lines)


def with_table(document: str, counted: list[Counted]) -> str:
    """Return the page with these figures."""
    return between(document, BEGIN, END, table(counted))


def _on_device(one: Counted) -> int:
    return one.weights_bytes + one.cache_bytes + one.graph_bytes


def _leave_out(file: BinaryIO, blueprint: Blueprint) -> None:
    """In place of the tensors' content: a hole of their size."""
    for plan in blueprint.tensors:
        file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
        file.truncate(file.tell() + plan.size_bytes)
        file.seek(0, 2)
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))


def main() -> int:
    """Count, write the results and the table."""
    counted = count()
    today = datetime.datetime.now(tz=datetime.UTC)
    result = {
        "measured_at": today.isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "device": "RPC server of llama.cpp; nothing was loaded",
        "counted": [asdict(one) for one in counted],
    }
    (RESULTS / f"{today:%Y-%m-%d}-sizing.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text(encoding="utf-8"), counted), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

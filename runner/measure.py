"""`python -m runner measure`: count the memory of a model with a layout, without loading it.

The engine loads the model with `no_alloc` and creates the context: everything is planned, nothing is allocated, no
weight is read. The result is what the engine would ask for, right to a few MiB.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
from google.protobuf import json_format

from common.errors import BadModelFile, InvalidRequest
from protos import cluster_pb2
from runner.core.description import Pooling
from runner.core.layout import LaunchLayout, cache_cells, resolve_layout
from runner.core.memory_report import ClassBytes, MemoryUse, extrapolate, sum_by_device
from runner.core.model_files import ModelFiles
from runner.core.pooling import pooled_layout
from runner.engine.devices import open_layout_devices
from runner.engine.gguf_header import check_model_file
from runner.engine.library import engine_log, start_engine
from runner.engine.memory import BreakdownUnavailable, read_breakdown
from runner.engine.parameters import context_parameters, model_parameters
from runner.engine.pooled import read_pooling
from runner.engine.pooled_context import output_bytes, pooled_context_parameters
from runner.engine.rpc_hello import RpcUnusable
from runner.file_arguments import add_file_arguments, files_of
from runner.serve.converters import parse_layout

EXIT_BAD_FILE = 3
EXIT_BAD_LAYOUT = 4
EXIT_UNAVAILABLE = 5
# The engine keeps some 50 bytes for each cell even without allocating; beyond this the figures are extrapolated.
CELLS_COUNTED_MAX = 8 * 1024 * 1024
_LOAD_MODE_NONE = 0  # any other aborts together with no_alloc


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this mode."""
    add_file_arguments(parser)
    parser.add_argument("--layout", default="{}", metavar="JSON", help="puna.v1.Layout; {} chooses everything")
    parser.add_argument(
        "--rpc", action="append", default=[], metavar="HOST:PORT", help="the layout uses devices of this RPC server"
    )


def run(args: argparse.Namespace) -> int:
    """Print puna.v1.MemoryReport as JSON. 3: bad file, 4: no engine can have this layout, 5: cannot count here."""
    try:
        report = measure(files_of(args), parse_layout(args.layout), rpc_endpoints=args.rpc)
    except BadModelFile as error:
        return _refuse(error.message, EXIT_BAD_FILE)
    except InvalidRequest as error:
        return _refuse(error.message, EXIT_BAD_LAYOUT)
    except (BreakdownUnavailable, RpcUnusable, ValueError) as error:
        return _refuse(str(error), EXIT_UNAVAILABLE)
    sys.stdout.write(json_format.MessageToJson(report, preserving_proto_field_name=True, indent=None) + "\n")
    return 0


def measure(files: ModelFiles, wanted: LaunchLayout, *, rpc_endpoints: Sequence[str] = ()) -> cluster_pb2.MemoryReport:
    """Count what the model takes.

    Raises:
        BadModelFile, InvalidRequest, BreakdownUnavailable, RpcUnusable, ValueError: see `run`.
    """
    path = files.model
    check_model_file(path)
    start_engine()
    devices = open_layout_devices(wanted, rpc_endpoints)
    model = _load_without_memory(path, wanted, devices)
    try:
        trained_tokens = llama.llama_model_n_ctx_train(model)
        layout = resolve_layout(wanted, trained_context_tokens=trained_tokens, cpu_threads=1).layout
        pooling = read_pooling(path)
        if pooling is not None:
            return _to_report(_count_pooled(model, layout, devices, pooling), cluster_pb2.MEMORY_ORIGIN_MEASURED)
        cells = cache_cells(layout)
        if cells <= CELLS_COUNTED_MAX:
            return _to_report(_count(model, layout, devices), cluster_pb2.MEMORY_ORIGIN_MEASURED)
        small, large = (_with_cells(layout, CELLS_COUNTED_MAX // part) for part in (2, 1))
        use = extrapolate(
            _count(model, small, devices),
            _count(model, large, devices),
            small_cells=cache_cells(small),
            large_cells=cache_cells(large),
            cells=cells,
        )
        return _to_report(use, cluster_pb2.MEMORY_ORIGIN_ESTIMATED)
    finally:
        llama.llama_model_free(model)


def _load_without_memory(path: Path, layout: LaunchLayout, devices: Mapping[str, int]) -> Any:
    parameters = model_parameters(layout, devices)
    parameters.struct.no_alloc = True
    parameters.struct.load_mode = _LOAD_MODE_NONE
    model = llama.llama_model_load_from_file(str(path).encode(), parameters.struct)
    if not model:
        raise BadModelFile(f"{path}: the engine refuses the file: {_last_errors()}")
    return model


def _count_pooled(model: Any, layout: LaunchLayout, devices: Mapping[str, int], pooling: Pooling) -> MemoryUse:
    recurrent = llama.llama_model_is_recurrent(model) or llama.llama_model_is_hybrid(model)
    pooled = pooled_layout(layout, recurrent=recurrent)
    use = _count(model, pooled, devices, pooled_context_parameters(pooled, pooling))
    return replace(use, host=use.host.plus(output_bytes(model, tokens=pooled.batch_tokens)))


def _count(model: Any, layout: LaunchLayout, devices: Mapping[str, int], parameters: Any = None) -> MemoryUse:
    """Create a context that allocates nothing, and read its breakdown."""
    context = llama.llama_init_from_model(model, parameters or context_parameters(layout))
    if not context:
        raise InvalidRequest(f"the engine refuses the layout: {_last_errors()}", param="layout")
    try:
        buffers = read_breakdown(context, {pointer: device_id for device_id, pointer in devices.items()})
    finally:
        llama.llama_free(context)
    return sum_by_device(buffers, device_ids=[device.id for device in layout.devices])


def _with_cells(layout: LaunchLayout, cells: int) -> LaunchLayout:
    return replace(layout, context_tokens=cells // layout.slots)


def _to_report(use: MemoryUse, origin: "cluster_pb2.MemoryOrigin.ValueType") -> cluster_pb2.MemoryReport:
    return cluster_pb2.MemoryReport(
        origin=origin,
        devices=[_to_memory(device_id, count) for device_id, count in use.devices],
        host=_to_memory("", use.host),
    )


def _to_memory(device_id: str, count: ClassBytes) -> cluster_pb2.DeviceMemory:
    return cluster_pb2.DeviceMemory(
        device_id=device_id,
        weights_bytes=count.weights_bytes,
        cache_bytes=count.cache_bytes,
        graph_bytes=count.graph_bytes,
    )


def _last_errors() -> str:
    return "; ".join(engine_log.errors) or "no reason given"


def _refuse(message: str, status: int) -> int:
    print(f"puna runner measure: {message}", file=sys.stderr)
    return status

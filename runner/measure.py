"""`python -m runner measure`: count the memory of a model with a layout, without loading it.

The engine loads the model with `no_alloc` and creates the context: everything is planned, nothing is allocated, no
weight is read. The result is what the engine would ask for, right to a few MiB.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import llama_cpp.llama_cpp as llama
from google.protobuf import json_format

from common.errors import BadModelFile, InvalidRequest, PunaError
from common.spec.layout import Layout
from common.telemetry.logs import configure_logs, get_logger
from protos import cluster_pb2
from runner.core.layout.cache_sizes import padded
from runner.core.layout.layout import cache_cells
from runner.core.layout.load_log import MemoryClass, find_refusal
from runner.core.layout.memory_report import MemoryUse, add_draft, extrapolate
from runner.core.layout.moved_layer import MovedLayer
from runner.core.layout.projector import widened
from runner.core.model.description import Pooling
from runner.core.model.model_files import ModelFiles
from runner.core.pooled.pooling import pooled_layout, pooling_of
from runner.engine.bindings.library import engine_log, start_engine
from runner.engine.devices.graph_sizes import reserve_graphs
from runner.engine.llama.accounting import Count, CountAgain, count_memory, report_layers
from runner.engine.llama.draft_model import check_draft, draft_launch, draft_parameters, with_rows
from runner.engine.llama.launch import Launch, prepare_launch
from runner.engine.llama.memory import BreakdownUnavailable, buffer_types
from runner.engine.llama.model import load_failure, read_weights
from runner.engine.llama.opened_context import with_layers
from runner.engine.llama.parameters import context_parameters, model_parameters
from runner.engine.media.media_loading import PlannedProjector, plan_projector
from runner.engine.pooled.pooled_context import output_bytes, pooled_context_parameters
from runner.file_arguments import add_file_arguments, files_of
from runner.serve.converters import memory_to_proto, parse_layout

log = get_logger()

EXIT_BAD_FILE = 3
EXIT_BAD_LAYOUT = 4
EXIT_UNAVAILABLE = 5
# The engine keeps some 50 bytes for each cell even without allocating; beyond this the figures are extrapolated.
CELLS_COUNTED_MAX = 8 * 1024 * 1024
_LOAD_MODE_NONE = 0  # any other aborts together with no_alloc
NO_PROJECTOR = PlannedProjector()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    add_file_arguments(parser)
    parser.add_argument("--layout", default="{}", metavar="JSON", help="puna.v1.Layout; {} chooses everything")
    parser.add_argument(
        "--rpc", action="append", default=[], metavar="HOST:PORT", help="the layout uses devices of this RPC server"
    )


def run(args: argparse.Namespace) -> int:
    """Print puna.v1.MemoryReport as JSON. 3: bad file, 4: no engine can have this layout, 5: cannot count here."""
    configure_logs(service="measure")
    try:
        report = measure(files_of(args), parse_layout(args.layout), rpc_endpoints=args.rpc)
    except BadModelFile as error:
        return _refuse(error.message, EXIT_BAD_FILE)
    except InvalidRequest as error:
        return _refuse(error.message, EXIT_BAD_LAYOUT)
    except (BreakdownUnavailable, PunaError, ValueError) as error:
        return _refuse(str(error), EXIT_UNAVAILABLE)
    sys.stdout.write(json_format.MessageToJson(report, preserving_proto_field_name=True, indent=None) + "\n")
    return 0


def measure(files: ModelFiles, wanted: Layout, *, rpc_endpoints: Sequence[str] = ()) -> cluster_pb2.MemoryReport:
    """Count what the model takes.

    Raises:
        BadModelFile, InvalidRequest, BreakdownUnavailable, ValueError: see `run`.
        DeviceMemoryExhausted, InsufficientMemory: recurrent states are allocated even for counting.
        RpcUnusable: a lent device does not answer.
    """
    start_engine()
    launch = prepare_launch(files, wanted, rpc_endpoints=rpc_endpoints)
    projector = plan_projector(files.projector, launch.layout, launch.device_pointers)
    pooling = pooling_of(launch.header.metadata)
    model = _load_without_memory(launch)
    try:
        if pooling is not None:
            return memory_to_proto(_report_pooled(launch, model, pooling), cluster_pb2.MEMORY_ORIGIN_MEASURED)
        use = _report(launch, model, projector=projector)
        draft = _count_draft(launch, model)
        use = add_draft(use, draft) if draft is not None else use
    finally:
        llama.llama_model_free(model)
    counted = cache_cells(launch.layout) <= CELLS_COUNTED_MAX
    return memory_to_proto(use, cluster_pb2.MEMORY_ORIGIN_MEASURED if counted else cluster_pb2.MEMORY_ORIGIN_ESTIMATED)


def _load_without_memory(launch: Launch) -> Any:
    parameters = model_parameters(launch.layout, launch.device_pointers, rearranges=launch.rearranges)
    parameters.struct.no_alloc = True
    parameters.struct.load_mode = _LOAD_MODE_NONE
    engine_log.notes.clear()
    files = launch.files
    model = read_weights(files.weights, parameters)
    if not model:
        raise load_failure(files.model, more=files.more, device_pointers=launch.device_pointers)
    return model


def _with_moved(launch: Launch, count: Callable[[Launch, Any], Count]) -> CountAgain:
    """Make a count of the same launch with one layer elsewhere. Devices are open, everything else is settled."""

    def again(moved: MovedLayer) -> Count:
        other = replace(launch, resolved=replace(launch.resolved, layout=moved.layout), places=moved.places)
        model = _load_without_memory(other)
        try:
            return count(other, model)
        finally:
            llama.llama_model_free(model)

    return again


def _report(launch: Launch, model: Any, *, projector: PlannedProjector) -> MemoryUse:
    def count(launch: Launch, model: Any) -> Count:
        return _count_cells(launch, model, projector=projector)

    vocabulary_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    return with_layers(
        launch,
        launch.layout,
        count(launch, model),
        vocabulary_size=vocabulary_size,
        count_again=_with_moved(launch, count),
    ).use


def _count_draft(target: Launch, target_model: Any) -> MemoryUse | None:
    """Count the draft model of a launch; None: it has none, or a runner would refuse it and do without."""
    try:
        launch = draft_launch(target)
        if launch is None:
            return None
        model = _load_without_memory(launch)
    except BadModelFile as error:
        log.warning("draft.not_counted", text=error.message)
        return None
    try:
        check_draft(target_model, model, launch.files.model.name, rollback_tokens=target.layout.rollback_tokens)
        use = _count_cells(launch, model, projector=NO_PROJECTOR, parameters_of=draft_parameters).use
        vocabulary_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        return with_rows(use, launch.layout, vocabulary_size=vocabulary_size)
    except BadModelFile as error:
        log.warning("draft.not_counted", text=error.message)
        return None
    finally:
        llama.llama_model_free(model)


def _count_cells(
    launch: Launch,
    model: Any,
    *,
    projector: PlannedProjector,
    parameters_of: Callable[[Layout], Any] = context_parameters,
) -> Count:
    """Count a layout; for more cells than the engine should be asked for, on a line through two smaller counts."""

    def count(layout: Layout) -> Count:
        return _count(launch, model, parameters_of(widened(layout, projector.whole_rows)), projector=projector)

    cells = cache_cells(launch.layout)
    if cells <= CELLS_COUNTED_MAX:
        return count(launch.layout)
    small, large = (
        replace(launch.layout, context_tokens=CELLS_COUNTED_MAX // part // launch.layout.slots) for part in (2, 1)
    )
    use = extrapolate(
        count(small).use,
        count(large).use,
        small_cells=cache_cells(small),
        large_cells=cache_cells(large),
        cells=cells,
    )
    return Count(use=use, mapped=False)


def _report_pooled(launch: Launch, model: Any, pooling: Pooling) -> MemoryUse:
    recurrent = llama.llama_model_is_recurrent(model) or llama.llama_model_is_hybrid(model)
    layout = pooled_layout(launch.layout, recurrent=recurrent)

    def count(launch: Launch, model: Any) -> Count:
        pooled = pooled_layout(launch.layout, recurrent=recurrent)
        return _count(launch, model, pooled_context_parameters(pooled, pooling))

    return report_layers(
        launch,
        layout,
        count(launch, model),
        cells=padded(layout.context_tokens),
        host_extra_bytes=output_bytes(model, tokens=layout.batch_tokens),
        count_again=_with_moved(launch, count),
    )


def _count(launch: Launch, model: Any, parameters: Any, *, projector: PlannedProjector = NO_PROJECTOR) -> Count:
    """Create a context that allocates nothing, and read its breakdown."""
    engine_log.clear()
    context = llama.llama_init_from_model(model, parameters)
    if not context:
        if find_refusal(engine_log.errors, phase=MemoryClass.CACHE) is not None:
            raise load_failure(launch.files.model, phase=MemoryClass.CACHE, device_pointers=launch.device_pointers)
        reasons = "; ".join(engine_log.errors) or "no reason given"
        raise InvalidRequest(f"the engine refuses the layout: {reasons}", param="layout")
    try:
        outputs_max = 0 if llama.llama_model_has_encoder(model) else parameters.n_outputs_max
        graphs = reserve_graphs(context, buffer_types(context), outputs_max=outputs_max)
        return count_memory(launch, context, projector_bytes=projector.memory, graphs=graphs)
    finally:
        llama.llama_free(context)


def _refuse(message: str, status: int) -> int:
    print(f"puna runner measure: {message}", file=sys.stderr)
    return status

"""Refuses a load that cannot be reserved here before a weight is read, and says how large it would have been."""

from common.errors import DeviceMemoryExhausted, InsufficientMemory, InvalidRequest, PunaError
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.layout.layout import cache_cells, resolve_layout
from runner.core.layout.load_log import MemoryClass
from runner.core.layout.memory_report import ClassBytes
from runner.core.layout.reservation import cache_bytes_max, host_shortage_bytes, needs_counting
from runner.core.model.model_files import ModelFiles
from runner.engine.devices.devices import open_layout_devices
from runner.engine.devices.reserve import try_reservation
from runner.engine.devices.rpc_hello import RpcUnusable
from runner.engine.llama.launch import ModelHeader
from runner.engine.llama.memory import BreakdownUnavailable
from runner.measure import measure
from runner.ram import read_host_memory

log = get_logger()

MIB = 1024 * 1024


class AllocationRefused(Exception):
    """The layout does not fit: the text for the caller, and the sizes."""

    def __init__(self, error: InsufficientMemory | DeviceMemoryExhausted, attempted: cluster_pb2.MemoryReport) -> None:
        super().__init__(error.message)
        self.error = error
        self.attempted = attempted


def check_reservation(
    files: ModelFiles,
    wanted: Layout,
    header: ModelHeader | None,
    *,
    planned: cluster_pb2.MemoryReport | None = None,
    count_swap: bool = False,
) -> None:
    """Try the layout's sizes: on devices by allocating them for a moment, in host RAM by its free bytes.

    A file or a layout that cannot be used passes: the load that follows says why.

    Args:
        files: of the model.
        wanted: the layout.
        header: of the files; None where it cannot be read.
        planned: what was measured for this layout; without it the engine counts where it has to.
        count_swap: free swap is as good as free RAM.

    Raises:
        AllocationRefused: a device refused, or host RAM has not so much free.
    """
    counted = planned if planned is not None and _is_measured(planned, wanted) else None
    if wanted.devices:
        counted = counted or attempted_sizes(files, wanted)
        if counted is not None:
            _try_devices(files, wanted, counted)
    if header is not None:
        _check_host(files, wanted, header, counted, count_swap=count_swap)


def attempted_sizes(files: ModelFiles, wanted: Layout) -> cluster_pb2.MemoryReport | None:
    """Return the engine's count for a layout that was or will be refused; None where it cannot count."""
    try:
        report = measure(files, wanted)
    except (PunaError, BreakdownUnavailable, ValueError) as error:
        log.info("model.not_counted", text=str(error))
        return None
    return _attempted(report)


def _is_measured(report: cluster_pb2.MemoryReport, wanted: Layout) -> bool:
    same = [memory.device_id for memory in report.devices] == [device.device_id for device in wanted.devices]
    return same and report.origin == cluster_pb2.MEMORY_ORIGIN_MEASURED


def _attempted(report: cluster_pb2.MemoryReport) -> cluster_pb2.MemoryReport:
    copy = cluster_pb2.MemoryReport()
    copy.CopyFrom(report)
    copy.origin = cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
    return copy


def _try_devices(files: ModelFiles, wanted: Layout, report: cluster_pb2.MemoryReport) -> None:
    try:
        pointers = open_layout_devices(wanted)
    except (RpcUnusable, InvalidRequest):
        return
    sizes = {
        memory.device_id: (
            (MemoryClass.WEIGHTS, memory.weights_bytes),
            (MemoryClass.CACHE, memory.cache_bytes),
            (MemoryClass.GRAPH, memory.graph_bytes + memory.projector_bytes),
        )
        for memory in report.devices
        if memory.device_id in pointers
    }
    refusal = try_reservation(pointers, sizes)
    if refusal is not None:
        text = f"device {refusal.buffer} refused {refusal.size_bytes} bytes for {refusal.what}"
        raise AllocationRefused(DeviceMemoryExhausted(f"{files.model.name}: {text}"), _attempted(report))


def _check_host(
    files: ModelFiles,
    wanted: Layout,
    header: ModelHeader,
    counted: cluster_pb2.MemoryReport | None,
    *,
    count_swap: bool,
) -> None:
    """Count the host part if it may be too large, and refuse it if it is."""
    path = files.model
    try:
        ram = read_host_memory()
        free_bytes = (ram.counting_swap() if count_swap else ram).free_bytes
        weights_bytes = sum(part.stat().st_size for part in files.weights)
        cells = cache_cells(resolve_layout(wanted, trained_context_tokens=0, cpu_threads=1).layout)
    except (OSError, ValueError, InvalidRequest) as error:
        log.info("model.not_counted", text=str(error))
        return
    bound = cache_bytes_max(header.metadata, cells=cells)
    if not needs_counting(cache_bytes=bound, weights_bytes=weights_bytes, free_bytes=free_bytes):
        return
    report = counted or attempted_sizes(files, wanted)
    if report is None:
        return
    host = ClassBytes(
        weights_bytes=report.host.weights_bytes,
        cache_bytes=report.host.cache_bytes,
        graph_bytes=report.host.graph_bytes + report.host.projector_bytes,
    )
    shortage = host_shortage_bytes(host, free_bytes=free_bytes, weights_are_mapped=wanted.use_mmap is not False)
    if shortage:
        wants = ", ".join(
            f"{size // MIB} MiB for its {name}"
            for name, size in (
                ("cache", host.cache_bytes),
                ("graph", host.graph_bytes),
                ("weights", host.weights_bytes),
            )
        )
        text = f"{path.name}: host RAM has {free_bytes // MIB} MiB free; the layout wants {wants}"
        raise AllocationRefused(InsufficientMemory(text), _attempted(report))

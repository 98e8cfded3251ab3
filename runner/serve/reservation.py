"""Refuses a load that can never be reserved in host RAM, and says how large a refused one would have been."""

from common.errors import BadModelFile, InsufficientMemory, InvalidRequest
from common.logs import get_logger
from protos import cluster_pb2
from runner.core.layout import LaunchLayout, cache_cells, resolve_layout
from runner.core.memory_report import ClassBytes
from runner.core.model_files import ModelFiles
from runner.core.reservation import cache_bytes_max, host_shortage_bytes, needs_counting
from runner.engine.gguf_header import open_gguf_header
from runner.engine.memory import BreakdownUnavailable
from runner.engine.rpc_hello import RpcUnusable
from runner.measure import measure
from runner.ram import read_host_memory

log = get_logger()

MIB = 1024 * 1024


class AllocationRefused(Exception):
    """The layout does not fit: what the caller is told, and the sizes."""

    def __init__(self, error: InsufficientMemory, attempted: cluster_pb2.MemoryReport) -> None:
        super().__init__(error.message)
        self.error = error
        self.attempted = attempted


def check_reservation(files: ModelFiles, wanted: LaunchLayout) -> None:
    """Count the layout if it may be too large, and refuse it if it is.

    A file or a layout that cannot be used passes: the load that follows says why.

    Raises:
        AllocationRefused: host RAM has not so much free.
    """
    path = files.model
    try:
        free_bytes = read_host_memory().free_bytes
        weights_bytes = path.stat().st_size
        with open_gguf_header(path) as header:
            metadata = header.metadata()
        cells = cache_cells(resolve_layout(wanted, trained_context_tokens=0, cpu_threads=1).layout)
    except (OSError, ValueError, BadModelFile, InvalidRequest) as error:
        log.info("model.not_counted", text=str(error))
        return
    bound = cache_bytes_max(metadata, cells=cells)
    if not needs_counting(cache_bytes=bound, weights_bytes=weights_bytes, free_bytes=free_bytes):
        return
    report = attempted_sizes(files, wanted)
    if report is None:
        return
    host = ClassBytes(
        weights_bytes=report.host.weights_bytes,
        cache_bytes=report.host.cache_bytes,
        graph_bytes=report.host.graph_bytes,
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
        raise AllocationRefused(InsufficientMemory(text), report)


def attempted_sizes(files: ModelFiles, wanted: LaunchLayout) -> cluster_pb2.MemoryReport | None:
    """What the engine counts for a layout that was or will be refused; None where it cannot count."""
    try:
        report = measure(files, wanted)
    except (BadModelFile, InvalidRequest, BreakdownUnavailable, RpcUnusable, ValueError) as error:
        log.info("model.not_counted", text=str(error))
        return None
    report.origin = cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
    return report

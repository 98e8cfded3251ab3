"""What is loaded, in the metrics of a runner."""

from protos import cluster_pb2
from runner import metrics
from runner.engine.contract.engine import LoadedModel


def show_model(model: LoadedModel, *, name: str, digest: str, placement: cluster_pb2.PlacementRef) -> None:
    """Set what does not change until the process ends."""
    metrics.SLOTS.set(model.layout.slots)
    metrics.KV_CELLS.set(model.layout.slots * model.slot_context_tokens)
    metrics.INFO.labels(name, digest, placement.placement_id, placement.generation).set(1)
    if model.memory is None:
        return
    for device_id, held in (*model.memory.devices, ("host", model.memory.host)):
        sizes = (held.weights_bytes, held.cache_bytes, held.graph_bytes, held.projector_bytes)
        for kind, size in zip(("weights", "cache", "graph", "projector"), sizes, strict=True):
            metrics.MEMORY_BYTES.labels(device_id, kind).set(size)

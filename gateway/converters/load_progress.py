"""Load progress: from the scheduler's events to those of the typed API."""

from gateway.core.request.answers import LoadUpdate, Queued
from protos import scheduler_pb2


def to_queued(queued: scheduler_pb2.Queued) -> Queued:
    """Read it."""
    eta_s = queued.eta_s if queued.HasField("eta_s") else None
    return Queued(position=queued.position, waits_for=queued.waits_for, eta_s=eta_s)


def to_loading(load: scheduler_pb2.Loading) -> LoadUpdate:
    """Read it."""
    return LoadUpdate(
        fraction=load.fraction,
        bytes_done=load.bytes_done,
        bytes_total=load.bytes_total,
        waits_for=load.waits_for,
        eta_s=load.eta_s if load.HasField("eta_s") else None,
    )


def queued_to_proto(queued: Queued) -> scheduler_pb2.Queued:
    """Write it."""
    return scheduler_pb2.Queued(position=queued.position, waits_for=queued.waits_for, eta_s=queued.eta_s)


def loading_to_proto(load: LoadUpdate) -> scheduler_pb2.Loading:
    """Write it."""
    return scheduler_pb2.Loading(
        fraction=load.fraction,
        bytes_done=load.bytes_done,
        bytes_total=load.bytes_total,
        waits_for=load.waits_for,
        eta_s=load.eta_s,
    )

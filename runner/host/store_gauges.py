"""How much room model files take and leave, read when the Prometheus page is asked for."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.telemetry.metrics import Sample
from protos import cluster_pb2
from runner.host import metrics
from runner.host.store.blobs import BlobStore


def store_samples(models: Iterable[cluster_pb2.Model], directory: Path) -> Iterator[Sample]:
    """Bytes of the models, two names of the same weights counted once, and of their file system if it is there."""
    sizes = {model.digest or model.name: model.size_bytes for model in models}
    yield Sample(metrics.STORE_BYTES, sum(sizes.values()))
    yield Sample(metrics.STORE_BLOBS, len(BlobStore(directory / "blobs").digests()))
    try:
        disk = os.statvfs(directory)
    except OSError:
        return
    yield Sample(metrics.STORE_FREE, disk.f_bavail * disk.f_frsize)
    yield Sample(metrics.STORE_TOTAL, disk.f_blocks * disk.f_frsize)

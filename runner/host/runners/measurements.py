"""Answers Measure through a runner in measure mode, one at a time, and remembers what it said."""

import asyncio
from collections import OrderedDict
from dataclasses import replace

from google.protobuf import json_format

from common.errors import BadModelFile, InvalidRequest, ModelNotFound, ModelUnavailable
from protos import cluster_pb2, host_pb2
from runner.core.host.tunnel import Purpose
from runner.core.model import model_files as core_files
from runner.host import metrics
from runner.host.devices.devices import Devices
from runner.host.lending.borrowing import Borrower, addressed, renamed
from runner.host.models.model_files import NodeModels
from runner.host.processes.children import run_child
from runner.host.registry.origin import Origins, origins_of
from runner.host.runners.runner_spec import file_arguments, to_argument, without_addresses

MEASURE_TIMEOUT_S = 20.0
REPORTS_MAX = 512


class Measurements:
    """A cache by everything that the figures depend on. Failures are not kept."""

    def __init__(self, models: NodeModels, borrower: Borrower, devices: Devices, origins: Origins) -> None:
        self._models = models
        self._origins = origins
        self._borrower = borrower
        self._devices = devices
        self._reports: OrderedDict[bytes, cluster_pb2.MemoryReport] = OrderedDict()
        # While it runs, a measurement holds a context on each device: one at a time per node.
        self._turn = asyncio.Lock()

    async def measure(self, request: host_pb2.MeasureRequest) -> cluster_pb2.MemoryReport:
        """Return the bytes that the model takes with the layout, with the devices that the peers lend.

        Raises:
            ModelNotFound, BadModelFile: no usable file here, of the model, its projector, an adapter or its draft.
            RegistryFailed: nor at its origin.
            InvalidRequest: no engine can have this layout.
            ModelUnavailable: the measurement crashed or ran over its time, or a peer does not lend; estimate instead.
            NotSupported: this node uses no devices of other nodes.
        """
        layout = request.layout
        key = _cache_key(request.model_digest, layout, self._devices.engine_build)
        files = await self._files(request)
        async with self._turn:
            known = self._reports.get(key)
            if known is not None:
                self._reports.move_to_end(key)
                metrics.MEASURES.labels(source="cache").inc()
                return known
            device_ids = [device.device_id for device in layout.devices if not device.node_id]
            if self._devices.serves_somebody(device_ids):
                raise ModelUnavailable("a device serves a runner and cannot be measured on", retry_after_s=1.0)
            borrowed = await self._borrower.borrow(request.peers, Purpose.MEASURE)
            try:
                arguments = [*file_arguments(files), "--layout", to_argument(addressed(layout, borrowed))]
                with metrics.MEASURE_SECONDS.time(), self._devices.measuring(device_ids):
                    result = await run_child(
                        "measure",
                        arguments,
                        timeout_s=MEASURE_TIMEOUT_S,
                        environment=self._devices.environment(device_ids),
                    )
            finally:
                if borrowed is not None:
                    await borrowed.close()
            if result.exit_code != 0:
                metrics.MEASURES.labels(source="failed").inc()
                raise _failure(result.exit_code, result.failure())
            metrics.MEASURES.labels(source="engine").inc()
            report = renamed(json_format.Parse(result.output, cluster_pb2.MemoryReport()), layout)
            self._reports[key] = report
            if len(self._reports) > REPORTS_MAX:
                self._reports.popitem(last=False)
            return report

    async def _files(self, request: host_pb2.MeasureRequest) -> core_files.ModelFiles:
        """Return the files that are here, else their headers from where they are."""
        try:
            return self._models.files_of(request.model_digest, request.layout)
        except ModelNotFound:
            if not origins_of(request):
                raise
        if request.HasField("origin"):
            files = await self._origins.headers(request.origin, projector_digest=request.layout.projector_digest)
        else:
            alone = cluster_pb2.Layout()
            alone.CopyFrom(request.layout)
            alone.ClearField("draft_digest")
            files = self._models.files_of(request.model_digest, alone)
        if not request.HasField("draft_origin"):
            return replace(files, draft=self._models.draft_of(request.layout))
        draft = await self._origins.headers(request.draft_origin)
        return replace(files, draft=(draft.model, *draft.more))


def _failure(exit_code: int | None, text: str) -> BadModelFile | InvalidRequest | ModelUnavailable:
    match exit_code:
        case 3:  # as runner.measure ends; importing it here would load the engine
            return BadModelFile(text)
        case 4:
            return InvalidRequest(text, param="layout")
        case _:
            return ModelUnavailable(f"the measurement failed: {text}")


def _cache_key(model_digest: str, layout: cluster_pb2.Layout, engine_build: str) -> bytes:
    shape = without_addresses(layout)
    # Neither changes a byte count: threads, how weights are read, and which loop drives the engine.
    for field in ("threads", "use_mmap", "engine"):
        shape.ClearField(field)
    return b"\0".join((model_digest.encode(), engine_build.encode(), shape.SerializeToString(deterministic=True)))

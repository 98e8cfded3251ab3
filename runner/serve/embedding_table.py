"""The embedding and ranking requests of a runner as its event loop sees them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import RequestCanceled
from runner.engine.contract.engine import StepReport
from runner.engine.contract.pooling import PooledEnd, PooledEngine, PooledReport, PooledTimes
from runner.serve.streams import RequestTable, check_place

Inputs = Sequence[Sequence[int]]
NO_TIMES = PooledTimes(queue_ns=0, compute_ns=0)  # no input was in a call


class Computed(NamedTuple):
    """The vectors of one request, in the order of its inputs."""

    vectors: list[NDArray[np.float32]]
    times: PooledTimes


@dataclass(slots=True, kw_only=True)
class _Request:
    """One request inside the runner."""

    ended: asyncio.Event = field(default_factory=asyncio.Event)
    vectors: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    end: PooledEnd | None = None


class EmbeddingTable(RequestTable):
    """Every embedding or ranking request."""

    def __init__(self, engine: PooledEngine) -> None:
        """`engine` computes vectors."""
        super().__init__()
        self.engine = engine
        self._requests: dict[int, _Request] = {}

    @property
    def inside(self) -> int:
        """Requests that the engine still has."""
        return len(self._requests)

    async def compute(self, inputs: Inputs) -> Computed:
        """Return the vectors of framed inputs. Cancelling drops what is not computed yet.

        Raises:
            QueueFull: every place is taken.
            PunaError: an input has no vector.
        """
        check_place(self)
        self._next_id += 1
        request_id, request = self._next_id, _Request()
        self.engine.submit_inputs(request_id, inputs)
        self._requests[request_id] = request
        self._accept()
        try:
            await request.ended.wait()
        finally:
            if not request.ended.is_set():
                self.engine.cancel(request_id)
        assert request.end is not None, "how it ended"
        if request.end.error is not None:
            raise request.end.error
        if len(request.vectors) < len(inputs):
            raise RequestCanceled("request canceled")  # the engine was stopped
        return Computed([request.vectors[index] for index in range(len(inputs))], request.end.times or NO_TIMES)

    def apply(self, report: StepReport) -> None:
        """Hand out the vectors of one call."""
        assert isinstance(report, PooledReport)
        for vector in report.vectors:
            self._requests[vector.request_id].vectors[vector.input_index] = vector.values
        for end in report.ends:
            request = self._requests.pop(end.request_id)
            request.end = end
            request.ended.set()
        if not self._requests:
            self.idle.set()
        self._count(report)

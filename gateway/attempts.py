"""Where one request was tried already, and whether it may be tried elsewhere."""

from dataclasses import dataclass, field

from common.errors import (
    ModelLoading,
    ModelUnavailable,
    PlacementMismatch,
    PunaError,
    QueueFull,
    RequestCanceled,
    RunnerLost,
    ShuttingDown,
)
from common.logs import get_logger
from gateway import metrics
from gateway.record import RequestRecord
from gateway.replicas import Connection, ReplicaPool

log = get_logger()

LOST_TEXT = "model runner has unexpectedly stopped"
# Replicas tried for one request before its first event. More would let one poisonous request empty the cluster.
LOST_MAX = 3
# Refusals of full or not quite ready replicas for one request; each is followed by a wait for a free slot.
REFUSED_MAX = 16
_GONE = (ModelUnavailable, RunnerLost, RequestCanceled, ShuttingDown, PlacementMismatch)
_NOT_NOW = (QueueFull, ModelLoading)
# Errors of a replica after which another one may answer.
RETRYABLE = (*_GONE, *_NOT_NOW)


@dataclass(slots=True, kw_only=True)
class Attempts:
    """One per request. Resuming a stream elsewhere will count here, too."""

    pool: ReplicaPool
    record: RequestRecord
    lost: int = 0
    refused: int = 0
    avoided: set[str] = field(default_factory=set)
    delivered: bool = False  # the client has seen an event of a runner

    def judge(self, error: PunaError, connection: Connection | None) -> None:
        """After a failed call: return if the request may try again.

        Raises:
            PunaError: what the client gets.
        """
        if connection is None:
            raise error
        if isinstance(error, _NOT_NOW):
            self._refused_by(connection, error)
        else:
            self._lost_by(connection, error)
        self.record.retries += 1
        metrics.RETRIES.labels(error.reason).inc()

    def _refused_by(self, connection: Connection, error: PunaError) -> None:
        self.refused += 1
        self.pool.mark_full(connection)
        if self.delivered or self.refused >= REFUSED_MAX:
            raise error

    def _lost_by(self, connection: Connection, error: PunaError) -> None:
        key = connection.info.key
        log.warning("replica.lost", replica=key, reason=error.reason, text=error.message, delivered=self.delivered)
        if not isinstance(error, ShuttingDown | PlacementMismatch):
            self.pool.mark_lost(connection)
        self.lost += 1
        self.avoided.add(key)
        if self.delivered or self.lost >= LOST_MAX:
            raise RunnerLost(LOST_TEXT, retry_after_s=1.0) from error

"""Tries of one request: earlier replicas, permission for another try, and the crashes that it is blamed for."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from common.errors import (
    DeviceLost,
    ModelLoading,
    ModelUnavailable,
    PermissionDenied,
    PlacementMismatch,
    PunaError,
    QueueFull,
    RequestCanceled,
    RequestQuarantined,
    RunnerLost,
    ShuttingDown,
    Unauthenticated,
)
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.answers.record import RequestRecord
from gateway.converters.generation import placement_to_proto
from gateway.core.dispatch.prompt_prefixes import PromptPrefixes
from gateway.core.dispatch.resume import RESUMES_MAX, RetryBudget, Suspicion
from gateway.core.models.routes import ReplicaInfo
from gateway.replicas.replicas import Connection, ReplicaPool
from gateway.replicas.runner_calls import RunnerCall, RunnerSilent, RunnerStalled
from protos import runner_pb2

log = get_logger()

LOST_TEXT = "model runner has unexpectedly stopped"
UNREACHED_TEXT = "no model runner could be reached"
POISON_TEXT = "this request stopped two model runners and is not tried again"
# Replicas tried for one request before its first event.
LOST_MAX = 3
# Refusals of full or not quite ready replicas for one request; each is followed by a wait for a free slot.
REFUSED_MAX = 16
# For so long what the neighbours of a suspect see of its replica is its crash: a gateway that is short of processor
# time hears of it late, and a process that has crashed does not crash again.
SAME_CRASH_S = 10.0
# Beginnings of errors of calls that reached no process (`common.grpc.errors`, gRPC): nothing was computed there.
_NOT_CONNECTED = "failed to connect"
# Refusals of the gateway's own certificate by a runner: the key of the client was checked before.
_NOT_LET_IN = (Unauthenticated, PermissionDenied)
_GONE = (ModelUnavailable, RunnerLost, DeviceLost, RequestCanceled, ShuttingDown, PlacementMismatch, *_NOT_LET_IN)
_NOT_NOW = (QueueFull, ModelLoading)
# Errors of a replica after which another one may answer.
RETRYABLE = (*_GONE, *_NOT_NOW)


@dataclass(slots=True, kw_only=True)
class Attempts:
    """One per request and choice."""

    pool: ReplicaPool
    record: RequestRecord
    budget: RetryBudget = field(default_factory=RetryBudget)
    may_resume: bool = False
    lost: int = 0  # replicas, drained ones not counted
    has_reached: bool = False  # one of them: the request may have ended it
    drained: int = 0
    refused: int = 0
    resumes: int = 0
    suspicion: Suspicion = field(default_factory=Suspicion)
    avoided: set[str] = field(default_factory=set)
    delivered: bool = False  # the client has seen an event of a runner
    answer_tokens: int = 0  # that the client has seen, or that are held for it
    cause: str = ""  # why the answer is between two replicas; empty: it is not
    has_asked_again: bool = False
    last_node_id: str = ""  # of the replica that the answer was lost by
    crashed: list[ReplicaInfo] = field(default_factory=list)  # replicas whose crashes it is blamed for

    def continued(self, connection: Connection) -> None:
        """Note that the answer went on: new tokens came."""
        if self.cause:
            metrics.RESUMES.labels(self.cause, "resumed").inc()
            log.info("answer.resumed", cause=self.cause, replica=connection.info.key, at_token=self.answer_tokens)
            self.cause = ""
        if self.suspicion.is_computed and self.suspicion.is_past(self.answer_tokens):
            self.pool.clear_suspect(connection, self.suspicion)

    @property
    def suspect(self) -> Suspicion | None:
        """Return the suspicion if the request is a suspect."""
        return self.suspicion if self.suspicion.is_suspect else None

    @asynccontextmanager
    async def probation(self, connection: Connection, timeout_s: float) -> AsyncIterator[AsyncExitStack]:
        """Let a suspect wait until the replica computes no other, of any gateway; closing lets the next one begin."""
        async with AsyncExitStack() as held:
            if self.suspicion.is_suspect:
                request = runner_pb2.ProbationRequest(placement=placement_to_proto(connection.info))
                grants = connection.runner.probation(request, timeout_s=timeout_s)
                if await anext(await held.enter_async_context(RunnerCall(grants, connection.streams)), None) is None:
                    raise RunnerLost(LOST_TEXT)
                self.suspicion.is_computed = True
            yield held

    def state_node_id(self, connection: Connection, prefixes: PromptPrefixes) -> str:
        """Return the node whose host may keep the state that this try begins with."""
        if self.last_node_id and prefixes.names:
            return self.last_node_id
        return self.pool.node_with_state(connection, prefixes)

    def retry_or_raise(self, error: PunaError, connection: Connection | None) -> None:
        """Decide on a failed call: return if the request may try again.

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

    def asks_again(self) -> bool:
        """Return True if a load that ended with its runner is requested once more.

        A replica that crashes with its first request may do so before the scheduler has heard that it was ready: then
        the load is said to have failed, and what this request waits for is the crash that it has seen itself.
        """
        if self.lost == 0 or self.has_asked_again:
            return False
        self.has_asked_again = True
        return True

    def fail(self, error: PunaError) -> PunaError:
        """Return the client's error if no replica can be had: an answer that has begun was lost, for any reason."""
        if not self.cause:
            return error
        metrics.RESUMES.labels(self.cause, "failed").inc()
        log.warning("answer.lost", cause=self.cause, reason=error.reason, text=error.message)
        return RunnerLost(LOST_TEXT, retry_after_s=1.0)

    def _refused_by(self, connection: Connection, error: PunaError) -> None:
        self.refused += 1
        self.pool.mark_full(connection)
        if self.refused >= REFUSED_MAX:
            raise self.fail(error)

    def _lost_by(self, connection: Connection, error: PunaError) -> None:
        key = connection.info.key
        log.warning(
            "replica.lost",
            replica=key,
            reason=error.reason,
            text=error.message,
            delivered=self.delivered,
            at_token=self.answer_tokens,
        )
        self.last_node_id = connection.info.node_id
        if not isinstance(error, RunnerSilent):  # that one may be back before there is another
            self.avoided.add(key)
        if isinstance(error, ShuttingDown | PlacementMismatch) or connection.is_draining:
            self.drained += 1
        else:
            self.lost += 1
            self.has_reached |= _is_of_a_process(error)
            self._blame(connection, error)
            self.pool.mark_lost(connection)
        if self.delivered:
            self._resume(error)
        elif self.lost >= LOST_MAX or self.drained >= REFUSED_MAX or not self.budget.spend():
            if self.lost and not self.has_reached:
                raise ModelUnavailable(UNREACHED_TEXT, retry_after_s=1.0) from error
            raise RunnerLost(LOST_TEXT, retry_after_s=1.0) from error

    def _resume(self, error: PunaError) -> None:
        self.cause = self.cause or _cause(error)
        if not self.may_resume or self.lost > RESUMES_MAX or self.drained >= REFUSED_MAX:
            raise self.fail(error) from error
        self.resumes += 1
        self.record.resumes += 1

    def _blame(self, connection: Connection, error: PunaError) -> None:
        """Count a crash, unless it was none, nothing was computed there, or another request is the likelier culprit."""
        if isinstance(error, DeviceLost | RequestCanceled | RunnerSilent) or not _is_of_a_process(error):
            return
        now_s, suspect = self.pool.now_s(), connection.suspect
        since_s = now_s - (connection.suspect_crashed_s or -SAME_CRASH_S)
        if suspect is self.suspicion:
            if not suspect.is_computed:  # it was waiting for its probation
                return
            connection.suspect_crashed_s = now_s
        elif since_s < SAME_CRASH_S or (suspect is not None and suspect.is_computed):
            return
        self.suspicion.crashed(answer_tokens=self.answer_tokens)
        self.crashed.append(connection.info)
        if self.suspicion.is_poison:
            self.pool.mark_lost(connection)
            if self.cause or self.delivered:
                metrics.RESUMES.labels(self.cause or _cause(error), "quarantined").inc()
            raise RequestQuarantined(POISON_TEXT)


def _is_of_a_process(error: PunaError) -> bool:
    """Return False if the call reached no runner, or was refused before anything was computed."""
    return not isinstance(error, _NOT_LET_IN) and _NOT_CONNECTED not in error.message


def _cause(error: PunaError) -> str:
    """Return the metric label of an error's cause."""
    return "stalled" if isinstance(error, RunnerStalled | RunnerSilent) else error.reason

"""Record of one request: filled while it runs, one log line and the metrics at its end."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import Histogram

from common.clock import Clock, SystemClock
from common.errors import RequestCanceled
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.core.dispatch.work_limit import cost_of
from gateway.core.models.routes import ModelInfo, ReplicaInfo
from gateway.core.request.answers import Dialect, Done
from gateway.keys.visits import current_visit, sender
from gateway.pressure.work import WORK, RequestWork, work_s

log = get_logger()

OTHER = "other"
CANCELED = "canceled"
CANCELED_STATUSES = frozenset({"499", "CANCELLED"})  # the client left: over HTTP, over gRPC


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One per request, HTTP or gRPC. `route` is the path of the route table, never the client's own text."""

    dialect: Dialect
    route: str
    method: str = ""
    clock: Clock = field(default_factory=SystemClock)
    quiet: bool = False  # health checks and scrapes: counted, not logged
    model: str | None = None  # only once it is known to exist
    digest: str | None = None  # of the model, as lists show it
    stream: bool | None = None
    started_s: float = 0.0
    queue_s: float | None = None
    load_s: float | None = None
    first_token_s: float | None = None
    replica: str | None = None
    node: str | None = None
    placed: ReplicaInfo | None = None  # the same replica
    retries: int = 0
    resumes: int = 0  # answers that went on at another replica
    may_resume: bool = True  # the client has not asked otherwise
    dones: list[Done] = field(default_factory=list)  # one per choice
    error: str | None = None
    client_request_id: str | None = None
    prompt_tokens: int = 0  # as a runner began to read them
    answer_tokens: int = 0  # as they arrived
    vector_tokens: int = 0  # of embeddings and rankings
    span: tracing.Span = tracing.NO_SPAN
    changes: dict[str, object] = field(default_factory=dict)  # what an administrative act changes, for the audit log
    is_limited: bool = False  # its preparation counts as work in progress
    work: RequestWork | None = None  # since its body is here
    _last_token_s: float | None = None
    _inter_token: Histogram | None = None  # of the model; looked up once

    def __post_init__(self) -> None:
        self.started_s = self.clock.now_s()

    def begin_trace(self) -> None:
        """Begin the trace: from here on this task, and those that it starts, work for this request."""
        self.span = tracing.begin(
            "request",
            {"http.route": self.route, "http.request.method": self.method, "puna.dialect": str(self.dialect)},
            kind=tracing.SpanKind.SERVER,
        )
        tracing.use(self.span)

    def begin_work(self, body_bytes: int) -> None:
        """Count the preparation of the request as work in progress.

        Raises:
            QueueFull: the gateway has too much to do.
        """
        WORK.check(cost_of(body_bytes), sender(), work_s())
        self.work = RequestWork(body_bytes)
        self.work.assign(sender())

    def found(self, model: ModelInfo) -> None:
        """Note the model of the request."""
        self.model, self.digest = model.name, model.shown_digest

    def changes_replicas(self, replicas: Iterable[ReplicaInfo]) -> None:
        """Note the placements that an administrative act has made, or ends."""
        self.changes["placements"] = [f"{one.placement_id}/{one.generation}" for one in replicas]

    def prepared(self) -> None:
        """Note that from here on the request waits, for a model, a slot or a runner; the first time counts."""
        if self.work is not None:
            self.work.end()

    def slot_found(self, replica: ReplicaInfo, *, waited_s: float, resumes: bool = False) -> None:
        """Note a slot of a replica; `resumes`: for an answer that has begun at another one."""
        self.queue_s = (self.queue_s or 0.0) + waited_s
        if not resumes:
            self.load_s = self.clock.now_s() - self.started_s
        self.placed, self.replica, self.node = replica, replica.placement_id, replica.node_id
        metrics.bound(metrics.QUEUE_S, self.model or OTHER).observe(waited_s)

    def token_arrived(self, token_count: int) -> None:
        """Note tokens from the runner."""
        now_s = self.clock.now_s()
        if self._last_token_s is None:
            self.first_token_s = now_s - self.started_s
            metrics.bound(metrics.FIRST_TOKEN_S, self.dialect, self.model or OTHER).observe(self.first_token_s)
        elif token_count:
            if self._inter_token is None:
                self._inter_token = metrics.bound(metrics.INTER_TOKEN_S, self.model or OTHER)
            self._inter_token.observe((now_s - self._last_token_s) / token_count)
        self._last_token_s = now_s
        self.answer_tokens += token_count

    def settle(self) -> None:
        """Tell the caller's quota what was really used; an answer that was cut counts as far as it came."""
        if (visit := current_visit()) is not None:
            done = sum(one.usage.prompt_tokens + one.usage.completion_tokens for one in self.dones)
            visit.settle(max(done, self.prompt_tokens + self.answer_tokens) + self.vector_tokens)

    def finish(self, status: str) -> None:
        """Finish the request: count it, and write its one line."""
        self.settle()
        self.prepared()
        model = self.model or OTHER
        duration_s = self.clock.now_s() - self.started_s
        metrics.bound(metrics.REQUESTS, self.dialect, self.route, model, status, self._outcome(status)).inc()
        if self.model is not None:
            metrics.bound(metrics.REQUEST_S, self.dialect, model).observe(duration_s)
        self._end_trace(status)
        fields: dict[str, object] = {
            "dialect": str(self.dialect),
            "route": self.route,
            "method": self.method,
            "status": status,
            "model": self.model,
            "stream": self.stream,
            "duration_ms": _ms(duration_s),
            "queue_ms": _ms(self.queue_s),
            "load_ms": _ms(self.load_s),
            "first_token_ms": _ms(self.first_token_s),
            "replica": self.replica,
            "node": self.node,
            "retries": self.retries or None,
            "resumes": self.resumes or None,
            "error": self.error,
            "client_request_id": self.client_request_id,
        }
        if self.dones:
            fields |= self._count_tokens(model)
        ended = {key: value for key, value in fields.items() if value is not None}
        (log.debug if self.quiet else log.info)("request.ended", **ended)
        if not self.quiet and (visit := current_visit()) is not None:
            visit.note(**ended, **{"digest": self.digest, **self.changes})

    def debug_fields(self) -> dict[str, object]:
        """Return the fields that the header x-puna-debug requests."""
        return {
            "placement": self.replica,
            "node": self.node,
            "queue_ms": _ms(self.queue_s),
            "load_ms": _ms(self.load_s),
            "resumes": self.resumes,
        }

    def _end_trace(self, status: str) -> None:
        outcome = self._outcome(status)
        self.span.set(
            {
                "http.response.status_code": int(status) if status.isdecimal() else None,
                "rpc.grpc.status": None if status.isdecimal() else status,
                "puna.outcome": outcome,
                "puna.retries": self.retries,
                "gen_ai.request.model": self.model,
                "gen_ai.usage.input_tokens": sum(done.usage.prompt_tokens for done in self.dones) or None,
                "gen_ai.usage.output_tokens": sum(done.usage.completion_tokens for done in self.dones) or None,
            }
        )
        if outcome not in ("ok", CANCELED):
            self.span.fail(outcome)
        self.span.end()

    def _outcome(self, status: str) -> str:
        """Return the outcome from a closed set, as far as it is known."""
        if status in CANCELED_STATUSES or self.error == RequestCanceled.reason:
            return CANCELED
        return self.error or "ok"

    def _count_tokens(self, model: str) -> dict[str, object]:
        usages = [done.usage for done in self.dones]
        counts = {
            "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
            "cached_tokens": sum(usage.cached_tokens for usage in usages),
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
        }
        for kind, name in (("in", "prompt_tokens"), ("out", "completion_tokens"), ("cached", "cached_tokens")):
            metrics.bound(metrics.TOKENS, model, kind).inc(counts[name])
        return {"end": str(self.dones[-1].reason), **counts}


def _ms(duration_s: float | None) -> float | None:
    return None if duration_s is None else round(duration_s * 1000, 1)

"""The gateway's Prometheus metrics. Labels come from closed sets or from models of the routes; else "other"."""

import contextlib
from typing import Any, TypeVar

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from common.errors import DeviceLost, ModelUnavailable, RunnerLost
from common.telemetry.metrics import Family, ScrapedGauges

Metric = TypeVar("Metric", bound=MetricWrapperBase)

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)

REQUESTS = Counter(
    "puna_gateway_requests_total",
    "Requests that ended, by status line and outcome: ok, canceled (the client left), or the error's reason",
    ["dialect", "route", "model", "status", "outcome"],
)
REQUEST_S = Histogram(
    "puna_gateway_request_seconds",
    "From a request's arrival to the end of its answer; requests about a model only "
    "(vLLM: e2e_request_latency_seconds)",
    ["dialect", "model"],
    buckets=_LATENCY_S,
)
FIRST_TOKEN_S = Histogram(
    "puna_gateway_first_token_seconds",
    "From the request's arrival to its first token, waiting and loading included (vLLM: time_to_first_token_seconds)",
    ["dialect", "model"],
    buckets=_LATENCY_S,
)
INTER_TOKEN_S = Histogram(
    "puna_gateway_inter_token_seconds",
    "Between two chunks of an answer, per token (vLLM: inter_token_latency_seconds)",
    ["model"],
    buckets=_INTER_TOKEN_S,
)
QUEUE_S = Histogram(
    "puna_gateway_queue_seconds",
    "From joining the queue to a slot, loading included (vLLM: request_queue_time_seconds)",
    ["model"],
    buckets=_LATENCY_S,
)
RUNNING = Gauge("puna_gateway_running_requests", "Answers in progress, waiting ones included", ["model"])
TOKENS = Counter(
    "puna_gateway_tokens_total",
    "Tokens by kind: in (the whole prompt; Ollama: prompt_eval_count), out (Ollama: eval_count), "
    "cached (the part of in that was not computed)",
    ["model", "kind"],
)
RETRIES = Counter("puna_gateway_retries_total", "Requests sent to another replica before their first event", ["cause"])
RESUMES = Counter(
    "puna_gateway_resumes_total",
    "Streams whose replica was lost after their first event, by the error's reason and what became of them: "
    "resumed, failed, quarantined",
    ["cause", "outcome"],
)
# Prometheus sees a first increase only of a series that has shown zero, and an alert counts increases.
for _cause in ("stalled", RunnerLost.reason, ModelUnavailable.reason, DeviceLost.reason):
    for _outcome in ("failed", "quarantined"):
        RESUMES.labels(_cause, _outcome)
QUARANTINED = Counter("puna_gateway_quarantined_requests_total", "Requests refused because they stopped two runners")
WORK_LIMIT = Gauge("puna_gateway_work_limit", "Short requests that may be prepared at once; falls when they stand")
WORK_IN_PROGRESS = Gauge(
    "puna_gateway_work_in_progress",
    "Requests that are prepared: read completely, and not waiting for a slot or a runner yet",
)
OVERLOADED = Counter(
    "puna_gateway_overload_refusals_total", "Requests refused because the gateway has no processor time for them"
)
AUDIT_LOST = Counter("puna_gateway_audit_lost_total", "Entries that the audit log could not take")
IGNORED_FIELDS = Counter("puna_gateway_ignored_fields_total", "Unknown fields in request bodies")
STOPPED_TEMPLATES = Counter(
    "puna_gateway_stopped_templates_total",
    "Renderings that the limits of chat templates stopped, by how: killed (CPU time, memory or wall time of a worker), "
    "refused (the same template in the minute after)",
    ["how"],
)
KILLED_CONSTRAINTS = Counter(
    "puna_gateway_killed_constraints_total",
    "Schemas and grammars whose compilation was ended for its CPU time, memory or wall time",
)
ROUTES_CONNECTED = Gauge("puna_gateway_routes_connected", "1 while the watch on the scheduler's routes is open")
SKIPPED_ROWS = Counter(
    "puna_gateway_skipped_rows_total",
    "Rows of the routes and reports of runners that could not be taken, by table: models, aliases, statuses; the log "
    "names them (row.skipped)",
    ["table"],
)
REFUSED_TABLES = Counter("puna_gateway_refused_tables_total", "Tables of routes that could not be taken at all")
for _how in ("killed", "refused"):
    STOPPED_TEMPLATES.labels(how=_how)
for _table in ("models", "aliases", "statuses"):  # nought from the start, so that a first time shows as a rise
    SKIPPED_ROWS.labels(table=_table)
QUEUE_DEPTH = Family(
    "puna_gateway_queue_depth", "Requests that wait for a slot (vLLM: num_requests_waiting)", ("model",)
)
QUEUE_OLDEST_S = Family("puna_gateway_queue_oldest_seconds", "How long the oldest of them has waited", ("model",))
REPLICAS = Family(
    "puna_gateway_replicas", "Replicas of the routes by state, as this gateway can reach them", ("model", "state")
)
REPORT_AGE_S = Family(
    "puna_gateway_report_age_seconds",
    "Since a replica of the model last said how busy it is: the longest silence of those that can be reached",
    ("model",),
)
ROUTES_AGE_S = Family(
    "puna_gateway_routes_age_seconds", "Since the routes last changed, as this gateway heard; nothing before the first"
)
QUEUE_LIMIT = Gauge("puna_gateway_queue_limit", "Requests that may wait for one model (PUNA_MAX_QUEUE)")
ROUTE_GAUGES = ScrapedGauges((QUEUE_DEPTH, QUEUE_OLDEST_S, REPLICAS, REPORT_AGE_S, ROUTES_AGE_S))
SHARING_GATEWAYS = Gauge(
    "puna_gateway_sharing_gateways",
    "Gateways that count shares of tenants together, this one included; 1: it counts for itself",
)
SHARING_GATEWAYS.set(1)
LEFT_SLOTS = Counter(
    "puna_gateway_left_slots_total", "Waits of a moment with a free slot, for a tenant that waits at another gateway"
)
KEY_STORE_UP = Gauge(
    "puna_gateway_key_store_up",
    "1 while the Redis of keys and quotas answers; absent where a gateway has none",
    registry=None,
)

_bound: dict[tuple[object, ...], Any] = {}


def bound(metric: Metric, *labels: str) -> Metric:
    """Bind a metric to its labels, for counts of every request: `labels` takes ten times as long."""
    found: Metric | None = _bound.get((metric, *labels))
    if found is None:
        found = _bound[(metric, *labels)] = metric.labels(*labels)
    return found


def show_key_store() -> None:
    """Add the state of the Redis of keys to the metrics."""
    with contextlib.suppress(ValueError):  # another gateway of this process has said so already
        REGISTRY.register(KEY_STORE_UP)

"""Metrics of the scheduler. Labels `model` and `node` are those of the inventory."""

from prometheus_client import Counter, Gauge, Histogram

from common.errors import DeviceLost, InsufficientMemory, ModelUnavailable, RunnerLost
from common.telemetry.metrics import Family, ScrapedGauges

_BYTES_LABELS = ("node", "device")

LEADER = Gauge("puna_scheduler_leader", "1 while this scheduler leads")
FENCE = Gauge("puna_scheduler_fence", "Fence of this scheduler's leadership; 0 without")
TERMS = Counter("puna_scheduler_leadership_changes_total", "Leaderships of this process: gained, lost", ["change"])
STORE_UP = Gauge("puna_scheduler_store_up", "1 while the state store answers")
STORE_CALLS = Counter(
    "puna_scheduler_store_calls_total",
    "Calls of the state store (Redis) by command and outcome: ok, failed, skipped (it was away a moment ago)",
    ["command", "outcome"],
)
STORE_CALL_S = Histogram(
    "puna_scheduler_store_call_seconds",
    "Time of one call of the state store",
    ["command"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
SKIPPED_ROWS = Counter(
    "puna_scheduler_skipped_rows_total",
    "Rows of the inventory that could not be taken, by table: models; the log names them (row.skipped)",
    ["table"],
)
SKIPPED_ROWS.labels(table="models")
LOAD_REQUESTS = Counter(
    "puna_scheduler_load_requests_total",
    "Loads that began, by why: asked, or the constraint or wait that wants a replica",
    ["reason"],
)
LOADS = Counter(
    "puna_scheduler_loads_total", "Loads that ended, by outcome: ready, or the error's reason", ["model", "outcome"]
)
LOAD_SECONDS = Histogram(
    "puna_scheduler_load_seconds",
    "From the first request to ready or failed",
    ["outcome"],
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
LOADS_RUNNING = Gauge("puna_scheduler_loads_running", "Loads between the first request and ready or failed")
PLACEMENTS = Counter(
    "puna_scheduler_placements_total",
    "Placements written down, by model, why it was loaded, and how it lies: one_device, one_node, nodes, "
    "experts_on_host, partial, cpu",
    ["model", "reason", "shape"],
)
REFUSALS = Counter("puna_scheduler_refusals_total", "Callers that were refused, by the error's reason", ["reason"])
EVICTIONS = Counter("puna_scheduler_evictions_total", "Replicas stopped, by model and reason", ["model", "reason"])
REPLICAS_LOST = Counter(
    "puna_scheduler_replicas_lost_total", "Replicas whose runner died unasked, by model and the error's reason",
    ["model", "reason"],
)  # fmt: skip
# Usual causes. Prometheus sees a first increase only of a series that has shown zero, and alerts count increases.
_USUAL = (RunnerLost.reason, DeviceLost.reason, InsufficientMemory.reason, ModelUnavailable.reason)
CRASHES_IN_A_ROW = Family(
    "puna_scheduler_crashes_in_a_row",
    "Crashes of a model's replicas on a node, none of which had served for a minute; from three on",
    ("node", "model"),
)
REPLICAS = Family("puna_scheduler_replicas", "Replicas as hosts report them", ("node", "model", "state"))
PROMISED_BYTES = Family("puna_scheduler_promised_bytes", "Bytes promised on a device", _BYTES_LABELS)
RESERVED_BYTES = Family("puna_scheduler_reserved_bytes", "Bytes of a device that are never promised", _BYTES_LABELS)
PLANNED_BYTES = Family(
    "puna_scheduler_planned_bytes",
    "Bytes that loaded replicas were predicted to take, by class: weights, cache, graph, projector",
    (*_BYTES_LABELS, "class"),
)
ALLOCATED_BYTES = Family(
    "puna_scheduler_allocated_bytes",
    "Bytes that loaded replicas hold, by class, as their engines count them",
    (*_BYTES_LABELS, "class"),
)
RESIDUAL_BYTES = Family("puna_scheduler_residual_bytes", "Allocated minus planned, all classes", _BYTES_LABELS)
STATE_GAUGES = ScrapedGauges(
    (
        REPLICAS, CRASHES_IN_A_ROW, PROMISED_BYTES, RESERVED_BYTES, PLANNED_BYTES, ALLOCATED_BYTES, RESIDUAL_BYTES,
    )
)  # fmt: skip
EVENT_QUEUE = Gauge("puna_scheduler_event_queue", "Events that wait for the core")
EVENT_SECONDS = Histogram(
    "puna_scheduler_event_seconds",
    "Time the core takes for one event",
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
)
INVENTORY_AGE = Family("puna_scheduler_inventory_age_seconds", "Since the last inventory; nothing before the first")
INVENTORY_GAUGES = ScrapedGauges((INVENTORY_AGE,))
INVENTORY_UP = Gauge("puna_scheduler_inventory_connected", "1 while the watch on discovery is open")
ROUTES_VERSION = Gauge("puna_scheduler_routes_version", "Version of the routing table; grows with every change")
ROUTE_WATCHERS = Gauge("puna_scheduler_route_watchers", "Open WatchRoutes streams: one for each gateway")
WAITERS = Gauge("puna_scheduler_waiters", "Callers that wait for a load")


def begin_at_zero(model: str) -> None:
    """Show the losses and failed loads of a model from its first load on, before there are any."""
    for reason in _USUAL:
        REPLICAS_LOST.labels(model=model, reason=reason)
        LOADS.labels(model=model, outcome=reason)

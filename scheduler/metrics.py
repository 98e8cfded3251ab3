"""What the scheduler counts."""

from prometheus_client import Counter, Gauge, Histogram

LEADER = Gauge("puna_scheduler_leader_count", "1 while this scheduler leads")
FENCE = Gauge("puna_scheduler_fence_number", "Fence of this scheduler's leadership; 0 without")
STORE_UP = Gauge("puna_scheduler_store_up_count", "1 while the state store answers")
LOADS = Counter("puna_scheduler_loads_total", "Loads by outcome: ready, or the error's reason", ["outcome"])
LOAD_SECONDS = Histogram(
    "puna_scheduler_load_seconds",
    "From the first request to ready or failed",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
PLACEMENTS = Counter("puna_scheduler_placements_total", "Placements written down")
EVICTIONS = Counter("puna_scheduler_evictions_total", "Replicas stopped, by reason", ["reason"])
REPLICAS_LOST = Counter("puna_scheduler_replicas_lost_total", "Replicas whose runner died unasked")
PROMISED_BYTES = Gauge("puna_scheduler_promised_bytes", "Bytes promised on a device", ["node", "device"])
PLANNED_BYTES = Gauge(
    "puna_scheduler_planned_bytes", "Bytes that loaded replicas were planned with", ["node", "device"]
)
ALLOCATED_BYTES = Gauge("puna_scheduler_allocated_bytes", "Bytes that loaded replicas report", ["node", "device"])
RESIDUAL_BYTES = Gauge("puna_scheduler_residual_bytes", "Allocated minus planned", ["node", "device"])
EVENT_QUEUE = Gauge("puna_scheduler_event_queue_count", "Events that wait for the core")
EVENT_SECONDS = Histogram(
    "puna_scheduler_event_seconds",
    "Time the core takes for one event",
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
)
INVENTORY_AT = Gauge("puna_scheduler_inventory_received_unix_seconds", "When the last inventory arrived")
INVENTORY_UP = Gauge("puna_scheduler_inventory_connected_count", "1 while the watch on discovery is open")
ROUTES_VERSION = Gauge("puna_scheduler_routes_version_count", "Version of the routing table")
ROUTE_WATCHERS = Gauge("puna_scheduler_route_watchers_count", "Open WatchRoutes streams")
WAITERS = Gauge("puna_scheduler_waiters_count", "Callers that wait for a load")

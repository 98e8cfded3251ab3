"""The gateway's Prometheus metrics. Labels come from closed sets or from models of the routes; else "other"."""

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)

REQUESTS = Counter(
    "puna_gateway_requests_total", "Requests that ended.", labelnames=("dialect", "route", "model", "status")
)
FIRST_TOKEN_S = Histogram(
    "puna_gateway_first_token_seconds",
    "From the request's arrival to its first token.",
    labelnames=("dialect", "model"),
    buckets=_LATENCY_S,
)
INTER_TOKEN_S = Histogram(
    "puna_gateway_inter_token_seconds",
    "Between two chunks of an answer, per token.",
    labelnames=("model",),
    buckets=_INTER_TOKEN_S,
)
QUEUE_S = Histogram(
    "puna_gateway_queue_seconds",
    "From joining the queue to a slot, loading included.",
    labelnames=("model",),
    buckets=_LATENCY_S,
)
QUEUE_DEPTH = Gauge("puna_gateway_queue_depth_requests", "Requests that wait for a slot.")
RUNNING = Gauge("puna_gateway_running_requests", "Answers in progress, waiting ones included.")
TOKENS = Counter("puna_gateway_tokens_total", "Tokens by kind: in, out, cached.", labelnames=("model", "kind"))
RETRIES = Counter(
    "puna_gateway_retries_total", "Requests sent to another replica before their first event.", labelnames=("cause",)
)
IGNORED_FIELDS = Counter("puna_gateway_ignored_fields_total", "Unknown fields in request bodies.")

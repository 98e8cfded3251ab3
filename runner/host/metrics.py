"""What the host counts."""

from prometheus_client import Counter, Gauge, Histogram

RUNNERS = Gauge("puna_host_runners_count", "Live runner processes of this node")
LEASES = Gauge("puna_host_leases_count", "Placements of other nodes that devices of this node are lent to")
RUNNER_STARTS = Counter("puna_host_runner_starts_total", "Start commands by result", ["result"])
RUNNER_ENDS = Counter("puna_host_runner_ends_total", "Ended runners by reason", ["reason"])
MEASURE_SECONDS = Histogram(
    "puna_host_measure_seconds", "Time of one measurement", buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
)
MEASURES = Counter("puna_host_measures_total", "Measure commands by where the answer came from", ["source"])
MODELS = Gauge("puna_host_models_count", "Model files by state", ["state"])
CONNECTED = Gauge("puna_host_discovery_connected_count", "1 while registered at discovery")

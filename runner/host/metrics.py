"""Metrics of the host."""

from prometheus_client import Counter, Gauge, Histogram

from common.telemetry.device_metrics import DeviceGauges
from common.telemetry.metrics import Family, ScrapedGauges

RUNNERS = Gauge("puna_host_runners", "Live runner processes of this node")
LEASES = Gauge("puna_host_leases", "Placements of other nodes that devices of this node are lent to")
RUNNER_STARTS = Counter(
    "puna_host_runner_starts_total", "Start commands by result: spawned, attached, no_memory", ["result"]
)
RUNNER_ENDS = Counter("puna_host_runner_ends_total", "Ended runners by reason", ["reason"])
PROCESS_STARTS = Counter(
    "puna_host_process_starts_total",
    "Started processes of runners, the short-lived ones too: forked from the zygote, spawned by a command",
    ["how"],
)
START_SECONDS = Histogram(
    "puna_host_runner_start_seconds",
    "Time from the start of a runner's process until it listens; the load follows. Forked or spawned",
    ["how"],
    buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
MEASURE_SECONDS = Histogram(
    "puna_host_measure_seconds", "Time of one measurement by the engine", buckets=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20)
)
MEASURES = Counter(
    "puna_host_measures_total", "Measure commands by where the answer came from: engine, cache, failed", ["source"]
)
FAULTS = Counter(
    "puna_host_faults_injected_total", "Faults of `puna chaos` by kind: kill, stop, block, disk, memory", ["kind"]
)
MODELS = Gauge("puna_host_models", "Model files by state: usable, unusable", ["state"])
STUCK_FILES = Gauge("puna_host_stuck_files", "Paths below the model directory that do not answer")
CONNECTED = Gauge("puna_host_discovery_connected", "Discoveries that this host is registered at")
DEVICES = DeviceGauges("puna_host", ["device"])
SKIPPED_ROWS = Counter(
    "puna_host_skipped_rows_total",
    "Reports of runners that were ignored for a number out of range, by table: statuses; the log has it (row.skipped)",
    ["table"],
)
SKIPPED_ROWS.labels(table="statuses")
FETCHED_BYTES = Counter(
    "puna_host_fetched_bytes_total",
    "Bytes of blobs that came to this node, by who sent them: node, registry",
    ["source"],
)
FETCHES = Gauge("puna_host_fetches", "Blobs that are on their way to this node")
PULLS = Gauge("puna_host_pulls", "Models that are being pulled by name")
FETCH_RESTARTS = Counter(
    "puna_host_fetch_restarts_total",
    "Blobs begun anew by reason: no_ranges, changed; parts asked for again or elsewhere: part_again, source_refused",
    ["reason"],
)
FETCH_FAILURES = Counter(
    "puna_host_fetch_failures_total", "Blobs that did not come to this node, by reason", ["reason"]
)
for _how in ("forked", "spawned"):
    PROCESS_STARTS.labels(how=_how)
for _kind in ("kill", "stop", "block", "disk", "memory"):
    FAULTS.labels(_kind)
# What has happened never is nought from the start, so that a first time shows as a rise.
for _source in ("node", "registry"):
    FETCHED_BYTES.labels(source=_source)
for _reason in ("no_ranges", "changed", "part_again", "source_refused"):
    FETCH_RESTARTS.labels(reason=_reason)
for _reason in ("disk_full", "digest_mismatch", "registry_failed"):
    FETCH_FAILURES.labels(reason=_reason)
STATES_SAVED = Counter("puna_host_states_saved_total", "States of sequences that runners saved on this node")
STATES_RESTORED = Counter(
    "puna_host_states_restored_total",
    "Saved states that went back to a runner, by where they were: ram, disk",
    ["tier"],
)
STATES_REFUSED = Counter(
    "puna_host_states_refused_total",
    "Saved states that were not taken or not given back, by reason: too_large, not_sealed, forgotten, malformed, gone, "
    "damaged, unreadable; disk: the disk tier is off for a minute",
    ["reason"],
)
for _tier in ("ram", "disk"):
    STATES_RESTORED.labels(tier=_tier)
for _reason in ("too_large", "not_sealed", "forgotten", "malformed", "gone", "damaged", "unreadable", "disk"):
    STATES_REFUSED.labels(reason=_reason)
STATES_SENT = Counter("puna_host_states_sent_total", "Saved states that other nodes have read from this one")
STATES_FETCHED = Counter(
    "puna_host_states_fetched_total",
    "Saved states that another node was asked for, by result: fetched, none (it has none), slower (computing is "
    "faster), late (given up after the time that computing takes), busy, refused, failed",
    ["result"],
)
for _result in ("fetched", "none", "slower", "late", "busy", "refused", "failed"):
    STATES_FETCHED.labels(result=_result)
STATES_FETCHED_BYTES = Counter("puna_host_states_fetched_bytes_total", "Bytes of saved states from other nodes")
STATES = Family("puna_host_states", "Saved states by where they are: ram, disk; one may be in both", ("tier",))
STATE_BYTES = Family("puna_host_state_bytes", "Bytes of saved states by where they are: ram, disk", ("tier",))
STATE_BYTES_MAX = Family("puna_host_state_max_bytes", "The most bytes of saved states by tier: ram, disk", ("tier",))
STATE_GAUGES = ScrapedGauges((STATES, STATE_BYTES, STATE_BYTES_MAX))
STORE_BYTES = Family("puna_host_store_bytes", "Size of the model files of this node together")
STORE_FREE = Family("puna_host_store_free_bytes", "Free bytes of the file system that model files lie on")
STORE_TOTAL = Family("puna_host_store_total_bytes", "Size of the file system that model files lie on")
STORE_BLOBS = Family("puna_host_store_blobs", "Complete blobs in the store of this node, whatever they are")
STORE_GAUGES = ScrapedGauges((STORE_BYTES, STORE_FREE, STORE_TOTAL, STORE_BLOBS))

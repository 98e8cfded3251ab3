"""One node and its devices."""

from tools.dashboards.grafana import Board, Row, Variable
from tools.dashboards.shapes import lines, quantile, rate, share

_N = '{node=~"$node"}'
_BY = "node, device"

NODE = Board(
    uid="puna-node",
    title="Puna / Node",
    about="What a node has, what is promised and held there, and how its host and runners are.",
    variables=(Variable(name="node", label="Node", metric="puna_discovery_device_total_bytes"),),
    rows=(
        Row(
            "Devices",
            (
                lines(
                    "Memory",
                    "bytes",
                    (f"max by ({_BY}) (puna_discovery_device_total_bytes{_N})", "{{node}} {{device}} total"),
                    (
                        f"max by ({_BY}, source, trust) (puna_discovery_device_free_bytes{_N})",
                        "{{node}} {{device}} free ({{source}}, {{trust}})",
                    ),
                    (f"max by ({_BY}) (puna_scheduler_promised_bytes{_N})", "{{node}} {{device}} promised"),
                    (f"max by ({_BY}) (puna_scheduler_reserved_bytes{_N})", "{{node}} {{device}} kept free"),
                ),
                lines(
                    "Held by models",
                    "bytes",
                    (f"max by ({_BY}, class) (puna_scheduler_allocated_bytes{_N})", "{{device}} {{class}}"),
                    stacked=True,
                ),
                lines(
                    "Predicted and held",
                    "bytes",
                    (
                        f"sum by ({_BY}) (max by ({_BY}, class) (puna_scheduler_planned_bytes{_N}))",
                        "{{device}} predicted",
                    ),
                    (f"sum by ({_BY}) (max by ({_BY}, class) (puna_scheduler_allocated_bytes{_N}))", "{{device}} held"),
                    (f"max by ({_BY}) (puna_scheduler_residual_bytes{_N})", "{{device}} more than predicted"),
                    minimum=None,  # it may be less
                ),
                lines(
                    "Age of the free figures",
                    "s",
                    (f"max by ({_BY}) (puna_discovery_device_free_age_seconds{_N})", "{{device}}"),
                ),
                lines(
                    "States",
                    "short",
                    (f"max by ({_BY}, state) (puna_discovery_device_state{_N})", "{{device}} {{state}}"),
                ),
                lines(
                    "Temperature of cards",
                    "celsius",
                    (f"max by ({_BY}) (puna_discovery_device_temperature_celsius{_N})", "{{device}}"),
                ),
                lines(
                    "Power of cards",
                    "watt",
                    (f"max by ({_BY}) (puna_discovery_device_power_watts{_N})", "{{device}}"),
                ),
                lines(
                    "Use of cards",
                    "percentunit",
                    (f"max by ({_BY}) (puna_discovery_device_utilization_ratio{_N})", "{{device}} busy"),
                    (
                        f"max by ({_BY}, reason) (puna_discovery_device_throttled{_N})",
                        "{{device}} throttled: {{reason}}",
                    ),
                ),
                lines(
                    "Errors of cards",
                    "short",
                    (f"max by ({_BY}, kind) (puna_discovery_device_errors{_N})", "{{device}} {{kind}}"),
                ),
                lines(
                    "Speed of memory",
                    "Bps",
                    (
                        f"max by ({_BY}, source) (puna_discovery_device_speed_bytes_per_second{_N})",
                        "{{device}} {{source}}",
                    ),
                    about="As a copy was timed (0: it was not), and as decode steps of replicas showed.",
                ),
            ),
        ),
        Row(
            "Host",
            (
                lines(
                    "Age of the last report",
                    "s",
                    (f"max by (node) (puna_discovery_node_report_age_seconds{_N})", "{{node}}"),
                ),
                lines(
                    "Runners and leases",
                    "short",
                    (f"puna_host_runners{_N}", "{{node}} runners"),
                    (f"puna_host_leases{_N}", "{{node}} leases"),
                ),
                lines(
                    "Starts and ends",
                    "cpm",
                    (f"60 * {rate('puna_host_runner_starts_total', 'result', _N)}", "start: {{result}}"),
                    (f"60 * {rate('puna_host_runner_ends_total', 'reason', _N)}", "end: {{reason}}"),
                    about="A minute.",
                ),
                lines(
                    "Measurements",
                    "cpm",
                    (f"60 * {rate('puna_host_measures_total', 'source', _N)}", "{{source}}"),
                    about="A minute.",
                ),
                lines(
                    "Time of a measurement, 95 %",
                    "s",
                    (quantile(0.95, "puna_host_measure_seconds", "node", _N), "{{node}}"),
                ),
                lines("Model files", "short", (f"puna_host_models{_N}", "{{node}} {{state}}")),
                share(
                    "Disk for models, free",
                    (f"puna_host_store_free_bytes{_N} / puna_host_store_total_bytes{_N}", "{{node}}"),
                ),
                lines("Size of model files", "bytes", (f"puna_host_store_bytes{_N}", "{{node}}")),
                lines(
                    "Fetched",
                    "Bps",
                    (rate("puna_host_fetched_bytes_total", "node, source", _N), "{{node}} from {{source}}"),
                ),
                lines(
                    "Fetches and pulls",
                    "short",
                    (f"puna_host_fetches{_N}", "{{node}} blobs"),
                    (f"puna_host_pulls{_N}", "{{node}} pulls"),
                ),
                lines(
                    "Fetches that fail or begin again",
                    "cpm",
                    (f"60 * {rate('puna_host_fetch_failures_total', 'reason', _N)}", "failed: {{reason}}"),
                    (f"60 * {rate('puna_host_fetch_restarts_total', 'reason', _N)}", "again: {{reason}}"),
                    about="A minute.",
                ),
                lines("Registered at discovery", "short", (f"puna_host_discovery_connected{_N}", "{{node}}")),
            ),
        ),
        Row(
            "Processes",
            (
                lines(
                    "Memory",
                    "bytes",
                    (f"sum by (service, model) (process_resident_memory_bytes{_N})", "{{service}} {{model}}"),
                    stacked=True,
                ),
                lines(
                    "Processors in use",
                    "short",
                    (rate("process_cpu_seconds_total", "service, model", _N), "{{service}} {{model}}"),
                    stacked=True,
                ),
                lines("Slots in use", "short", (f"sum by (model) (puna_runner_slots_busy{_N})", "{{model}}")),
            ),
        ),
    ),
)

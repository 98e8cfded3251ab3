"""The whole cluster on one board."""

from tools.dashboards.grafana import Board, Row
from tools.dashboards.shapes import lines, quantile, rate, share, stat

_DEVICE_CLASSES = "sum by (class) (max by (node, device, class) (puna_scheduler_allocated_bytes))"

FLEET = Board(
    uid="puna-fleet",
    title="Puna / Fleet",
    about="What the cluster does, what it holds, and whether its processes hear each other.",
    variables=(),
    rows=(
        Row(
            "Now",
            (
                stat("Nodes", 'max(puna_discovery_nodes{state="ok"})'),
                stat("Suspect nodes", 'max(puna_discovery_nodes{state="suspect"})', red_from=1),
                stat("Leaders", "sum(puna_scheduler_leader)", about="One is right."),
                stat("Replicas ready", 'sum(max by (model) (puna_gateway_replicas{state="ready"}))'),
                stat("Requests", "sum(rate(puna_gateway_requests_total[$__rate_interval]))", unit="reqps"),
                stat(
                    "Tokens out", 'sum(rate(puna_gateway_tokens_total{kind="out"}[$__rate_interval]))', unit="tokens/s"
                ),
                stat("Processes down", "sum(up == bool 0)", red_from=1),
                stat(
                    "Alerts firing",
                    'count(ALERTS{alertname=~"Puna.*",alertstate="firing"}) or vector(0)',
                    red_from=1,
                ),
            ),
        ),
        Row(
            "Requests",
            (
                lines(
                    "Requests by outcome",
                    "reqps",
                    (rate("puna_gateway_requests_total", "outcome"), "{{outcome}}"),
                    stacked=True,
                ),
                lines(
                    "Requests by dialect",
                    "reqps",
                    (rate("puna_gateway_requests_total", "dialect"), "{{dialect}}"),
                    stacked=True,
                ),
                lines("Tokens", "tokens/s", (rate("puna_gateway_tokens_total", "kind"), "{{kind}}")),
                lines(
                    "First token, 95 %",
                    "s",
                    ("model:puna_gateway_first_token_seconds:p95_5m", "{{model}}"),
                    about="Waiting and loading included.",
                ),
                lines("Between tokens, 95 %", "s", ("model:puna_gateway_inter_token_seconds:p95_5m", "{{model}}")),
                lines("Whole request, 95 %", "s", ("model:puna_gateway_request_seconds:p95_5m", "{{model}}")),
                lines(
                    "Queue",
                    "short",
                    ("sum by (model) (puna_gateway_queue_depth)", "{{model}}"),
                    about="Requests that wait for a slot.",
                ),
                lines("Queue wait, 95 %", "s", ("model:puna_gateway_queue_seconds:p95_5m", "{{model}}")),
                share("Errors of ours", ("model:puna_gateway_errors:ratio5m", "{{model}}")),
            ),
        ),
        Row(
            "Models",
            (
                share("Slots in use", ("model:puna_runner_slots_busy:ratio", "{{model}}")),
                lines(
                    "Replicas by state",
                    "short",
                    ("sum by (state) (max by (node, model, state) (puna_scheduler_replicas))", "{{state}}"),
                    stacked=True,
                ),
                lines("Loads in progress", "short", ("max(puna_scheduler_loads_running)", "loads")),
                lines(
                    "Loads ended",
                    "cpm",
                    (f"60 * {rate('puna_scheduler_loads_total', 'outcome')}", "{{outcome}}"),
                    about="A minute.",
                ),
                lines(
                    "Time of a load, 95 %",
                    "s",
                    (quantile(0.95, "puna_scheduler_load_seconds", "outcome"), "{{outcome}}"),
                ),
                lines(
                    "Placements",
                    "cpm",
                    (f"60 * {rate('puna_scheduler_placements_total', 'shape, reason')}", "{{shape}}: {{reason}}"),
                    about="A minute, by how they lie and why.",
                ),
                lines(
                    "Replicas stopped",
                    "cpm",
                    (f"60 * {rate('puna_scheduler_evictions_total', 'reason')}", "{{reason}}"),
                    about="A minute.",
                ),
                lines(
                    "Callers refused",
                    "cpm",
                    (f"60 * {rate('puna_scheduler_refusals_total', 'reason')}", "{{reason}}"),
                    about="A minute, by the scheduler.",
                ),
                lines(
                    "Replicas lost, streams resumed",
                    "cpm",
                    (f"60 * {rate('puna_scheduler_replicas_lost_total', 'reason')}", "lost: {{reason}}"),
                    (f"60 * {rate('puna_gateway_resumes_total', 'outcome')}", "streams: {{outcome}}"),
                    about="A minute.",
                ),
            ),
        ),
        Row(
            "Devices",
            (
                share("Free", ("node_device:puna_device_free:ratio", "{{node}} {{device}}")),
                share("Promised", ("node_device:puna_device_promised:ratio", "{{node}} {{device}}")),
                lines("Held by models", "bytes", (_DEVICE_CLASSES, "{{class}}"), stacked=True),
            ),
        ),
        Row(
            "Control",
            (
                lines("Leader", "short", ("puna_scheduler_leader", "{{instance}}")),
                lines("Fence", "none", ("max(puna_scheduler_fence)", "fence")),
                lines("Age of reports", "s", ("max by (node) (puna_discovery_node_report_age_seconds)", "{{node}}")),
                lines(
                    "Age of the inventory",
                    "s",
                    ("puna_scheduler_inventory_age_seconds", "{{instance}}"),
                    about="Grows while nothing changes.",
                ),
                lines(
                    "Who hears whom",
                    "short",
                    ("puna_gateway_routes_connected", "gateway {{instance}} hears a scheduler"),
                    ("puna_scheduler_inventory_connected", "scheduler {{instance}} hears discovery"),
                    ("puna_host_discovery_connected", "host {{instance}} is registered"),
                ),
                lines(
                    "Calls of Redis",
                    "ops",
                    (rate("puna_scheduler_store_calls_total", "command, outcome"), "{{command}} {{outcome}}"),
                ),
                lines(
                    "Time of a call of Redis, 95 %",
                    "s",
                    (quantile(0.95, "puna_scheduler_store_call_seconds", "command"), "{{command}}"),
                ),
                lines(
                    "Time of the scheduler's events, 95 %",
                    "s",
                    (quantile(0.95, "puna_scheduler_event_seconds", "instance"), "{{instance}}"),
                ),
                lines(
                    "Lateness of event loops, 99 %",
                    "s",
                    (quantile(0.99, "puna_event_loop_lag_seconds", "service, instance"), "{{service}} {{instance}}"),
                    about="All streams of a process wait so long.",
                ),
                lines(
                    "Memory of processes",
                    "bytes",
                    ("sum by (service) (process_resident_memory_bytes)", "{{service}}"),
                    stacked=True,
                ),
                lines(
                    "Processors in use",
                    "short",
                    (rate("process_cpu_seconds_total", "service"), "{{service}}"),
                    stacked=True,
                ),
                lines(
                    "Processes by build",
                    "short",
                    ("count by (service, version) (puna_build_info)", "{{service}} {{version}}"),
                ),
                lines(
                    "Silence of replicas",
                    "s",
                    ("max by (model) (puna_gateway_report_age_seconds)", "{{model}}"),
                    about="Since a replica of the model last said how busy it is: the longest of those that gateways "
                    "can reach. They report every second.",
                ),
                lines(
                    "Age of routes",
                    "s",
                    ("puna_gateway_routes_age_seconds", "{{instance}}"),
                    about="Since the routes last changed, as each gateway heard. It grows while nothing changes; a "
                    "gateway that is alone in it has missed a change.",
                ),
                lines(
                    "Age of the free figures",
                    "s",
                    ("max by (node) (puna_discovery_device_free_age_seconds)", "{{node}}"),
                    about="The oldest of each node. Nothing new is placed where it is not known what is free.",
                ),
            ),
        ),
    ),
)

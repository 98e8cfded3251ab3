"""One model, or several."""

from tools.dashboards.grafana import Board, Row, Variable
from tools.dashboards.shapes import lines, quantile, rate, share

_M = '{model=~"$model"}'

MODEL = Board(
    uid="puna-model",
    title="Puna / Model",
    about="How a model is asked, how it answers, and what its runners do.",
    variables=(Variable(name="model", label="Model", metric="puna_gateway_queue_depth"),),
    rows=(
        Row(
            "As clients see it",
            (
                lines(
                    "Requests by outcome",
                    "reqps",
                    (rate("puna_gateway_requests_total", "outcome", _M), "{{outcome}}"),
                    stacked=True,
                ),
                lines(
                    "Requests by route",
                    "reqps",
                    (rate("puna_gateway_requests_total", "dialect, route", _M), "{{dialect}} {{route}}"),
                    stacked=True,
                ),
                lines("Tokens", "tokens/s", (rate("puna_gateway_tokens_total", "kind", _M), "{{kind}}")),
                lines(
                    "First token",
                    "s",
                    (quantile(0.5, "puna_gateway_first_token_seconds", "model", _M), "{{model}} 50 %"),
                    (quantile(0.95, "puna_gateway_first_token_seconds", "model", _M), "{{model}} 95 %"),
                ),
                lines(
                    "Between tokens",
                    "s",
                    (quantile(0.5, "puna_gateway_inter_token_seconds", "model", _M), "{{model}} 50 %"),
                    (quantile(0.95, "puna_gateway_inter_token_seconds", "model", _M), "{{model}} 95 %"),
                ),
                lines(
                    "Whole request",
                    "s",
                    (quantile(0.5, "puna_gateway_request_seconds", "model", _M), "{{model}} 50 %"),
                    (quantile(0.95, "puna_gateway_request_seconds", "model", _M), "{{model}} 95 %"),
                ),
            ),
        ),
        Row(
            "Waiting",
            (
                lines(
                    "Requests in progress",
                    "short",
                    (f"sum by (model) (puna_gateway_running_requests{_M})", "{{model}}"),
                    (f"sum by (model) (puna_gateway_queue_depth{_M})", "{{model}} waiting"),
                ),
                lines(
                    "Queue wait, 95 %", "s", (quantile(0.95, "puna_gateway_queue_seconds", "model", _M), "{{model}}")
                ),
                lines(
                    "Longest wait now", "s", (f"max by (model) (puna_gateway_queue_oldest_seconds{_M})", "{{model}}")
                ),
            ),
        ),
        Row(
            "Replicas",
            (
                lines(
                    "Replicas by state",
                    "short",
                    (f"max by (model, state) (puna_gateway_replicas{_M})", "{{model}} {{state}}"),
                    about="As gateways reach them.",
                ),
                lines(
                    "Slots",
                    "short",
                    (f"sum by (model) (puna_runner_slots_busy{_M})", "{{model}} busy"),
                    (f"sum by (model) (puna_runner_slots{_M})", "{{model}} all"),
                ),
                share(
                    "Cache in use",
                    (f"model:puna_runner_kv_cells_used:ratio{_M}", "{{model}}"),
                    about="Prompts of ended requests stay there to be found again.",
                ),
                lines(
                    "Memory",
                    "bytes",
                    (f"sum by (device, class) (puna_runner_memory_bytes{_M})", "{{device}} {{class}}"),
                    stacked=True,
                ),
                lines(
                    "Loads ended", "cpm", (f"60 * {rate('puna_scheduler_loads_total', 'outcome', _M)}", "{{outcome}}")
                ),
                lines("Load progress", "percentunit", (f"puna_runner_load_fraction{_M}", "{{model}} {{node}}")),
            ),
        ),
        Row(
            "Engine",
            (
                lines(
                    "Sequences in a decode call",
                    "short",
                    (f"model:puna_runner_batch_sequences:mean5m{_M}", "{{model}}"),
                ),
                lines(
                    "Time of a decode call",
                    "s",
                    (quantile(0.5, "puna_runner_decode_step_seconds", "model", _M), "{{model}} 50 %"),
                    (quantile(0.95, "puna_runner_decode_step_seconds", "model", _M), "{{model}} 95 %"),
                ),
                share(
                    "Time between decode calls",
                    (f"model:puna_runner_decode_gap:ratio5m{_M}", "{{model}}"),
                    about="Of the time in which there was work.",
                ),
                lines(
                    "Tokens computed",
                    "tokens/s",
                    (rate("puna_runner_prompt_tokens_total", "model", _M), "{{model}} prompts"),
                    (rate("puna_runner_generated_tokens_total", "model", _M), "{{model}} answers"),
                ),
                share(
                    "Prompt tokens found in the cache", (f"model:puna_runner_cached_tokens:ratio5m{_M}", "{{model}}")
                ),
                lines(
                    "Requests by cache",
                    "reqps",
                    (rate("puna_runner_prefix_requests_total", "result", _M), "{{result}}"),
                    stacked=True,
                ),
                lines(
                    "Prompt, 95 %",
                    "s",
                    (quantile(0.95, "puna_runner_request_prompt_seconds", "model", _M), "{{model}}"),
                ),
                lines(
                    "Answer, 95 %",
                    "s",
                    (quantile(0.95, "puna_runner_request_generate_seconds", "model", _M), "{{model}}"),
                ),
                lines("Ends", "reqps", (rate("puna_runner_requests_total", "reason", _M), "{{reason}}"), stacked=True),
            ),
        ),
    ),
)

"""Metrics of a serving runner. Updated on the event loop, never by the engine thread."""

from prometheus_client import Counter, Gauge, Histogram

_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
_PART_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

INFO = Gauge(
    "puna_runner_info", "1; the labels say what this runner has loaded", ["model", "digest", "placement", "generation"]
)
SLOTS = Gauge("puna_runner_slots", "Sequences that can run at the same time")
SLOTS_BUSY = Gauge("puna_runner_slots_busy", "Slots that serve a sequence (vLLM: num_requests_running)")
QUEUE_DEPTH = Gauge("puna_runner_queue_depth", "Requests that wait for a slot inside the runner")
PAUSES = Counter(
    "puna_runner_pauses_total", "Running requests that lost their slot to one of a higher band, or their cells"
)
PAUSES_ENDED = Counter("puna_runner_pauses_ended_total", "Paused requests that were given a slot again")
PAUSED_SECONDS = Counter("puna_runner_paused_seconds_total", "Time without a slot of pauses that have ended")
KV_CELLS = Gauge("puna_runner_kv_cells", "Inputs that the caches of all slots can hold together")
KV_CELLS_USED = Gauge(
    "puna_runner_kv_cells_used",
    "Inputs that slots hold, those of ended requests too; a prefix that two slots share counts twice. "
    "Over puna_runner_kv_cells: vLLM's kv_cache_usage_perc",
)
MEMORY_BYTES = Gauge(
    "puna_runner_memory_bytes",
    "What the engine holds by device (host: RAM) and class: weights, cache, graph, projector (and draft model)",
    ["device", "class"],
)
THREADS = Gauge("puna_runner_threads", "CPU threads that compute now; the node's runners with work share its cores")
LOAD_FRACTION = Gauge("puna_runner_load_fraction", "How much of the model is loaded, 0 to 1")
DECODE_CALLS = Counter("puna_runner_decode_calls_total", "Decode calls")
DECODE_SECONDS = Counter("puna_runner_decode_seconds_total", "Time in decode calls, waiting for results included")
DECODE_STEP_S = Histogram("puna_runner_decode_step_seconds", "Time of one decode call", buckets=_STEP_S)
DECODE_GAP_SECONDS = Counter(
    "puna_runner_decode_gap_seconds_total",
    "Time from one decode call's results to the next call, while there was work",
)
BATCH_SEQUENCES = Histogram(
    "puna_runner_batch_sequences",
    "Sequences that shared one decode call",
    buckets=(1, 2, 4, 8, 12, 16, 32, 64, 128, 256),
)
PROMPT_TOKENS = Counter("puna_runner_prompt_tokens_total", "Prompt tokens evaluated")
CACHED_TOKENS = Counter(
    "puna_runner_cached_tokens_total",
    "Prompt tokens found in the cache instead of evaluated (vLLM: prefix_cache_hits)",
)
PREFIX_REQUESTS = Counter(
    "puna_runner_prefix_requests_total",
    "Ended requests by whether a part of the prompt was cached: hit, miss",
    ["result"],
)
GENERATED_TOKENS = Counter("puna_runner_generated_tokens_total", "Tokens sampled (vLLM: generation_tokens)")
DRAFTED_TOKENS = Counter(
    "puna_runner_drafted_tokens_total",
    "Guessed tokens by what became of them (accepted, rolled_back) and by drafter: model (a draft model), text "
    "(vLLM: spec_decode_num_draft_tokens)",
    ["result", "drafter"],
)
DRAFTERS_OFF = Counter(
    "puna_runner_drafters_switched_off_total",
    "Drafters that failed or were slow, and were not asked again by a request",
)
STATES = Counter(
    "puna_runner_states_total",
    "States of sequences by what became of them: saved, not_sent, too_large, given_up (the slot changed meanwhile), "
    "restored, unused, missed, damaged, slower (computing was faster)",
    ["event"],
)
for _event in ("saved", "not_sent", "too_large", "given_up", "restored", "unused", "missed", "damaged", "slower"):
    STATES.labels(_event)
IMAGES = Counter("puna_runner_images_encoded_total", "Images that were encoded; those found in the cache are none")
IMAGE_SECONDS = Counter("puna_runner_image_seconds_total", "Time to decode and encode images, beside the decode calls")
REQUESTS = Counter("puna_runner_requests_total", "Requests that ended, by how (vLLM: request_success)", ["reason"])
REQUEST_QUEUE_S = Histogram(
    "puna_runner_request_queue_seconds", "Wait for a slot inside the runner, by request", buckets=_PART_S
)
REQUEST_PROMPT_S = Histogram(
    "puna_runner_request_prompt_seconds",
    "Evaluation of the prompt, by request (vLLM: request_prefill_time_seconds)",
    buckets=_PART_S,
)
REQUEST_GENERATE_S = Histogram(
    "puna_runner_request_generate_seconds",
    "First token to last, by request (vLLM: request_decode_time_seconds)",
    buckets=_PART_S,
)

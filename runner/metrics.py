"""What a serving runner tells Prometheus. Moved on the event loop, never by the engine thread."""

from prometheus_client import Counter, Gauge, Histogram

SLOTS = Gauge("puna_runner_slots", "Sequences that can run at the same time")
SLOTS_BUSY = Gauge("puna_runner_slots_busy", "Slots that serve a sequence")
QUEUE_DEPTH = Gauge("puna_runner_queue_depth", "Requests that wait for a slot")
LOAD_FRACTION = Gauge("puna_runner_load_fraction", "How much of the model is loaded, 0 to 1")
DECODE_CALLS = Counter("puna_runner_decode_calls_total", "Decode calls")
DECODE_SECONDS = Counter("puna_runner_decode_seconds_total", "Time in decode calls, waiting for results included")
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
CACHED_TOKENS = Counter("puna_runner_cached_tokens_total", "Prompt tokens found in the cache instead of evaluated")
GENERATED_TOKENS = Counter("puna_runner_generated_tokens_total", "Tokens sampled")
IMAGES = Counter("puna_runner_images_encoded_total", "Images that were encoded; those found in the cache are none")
IMAGE_SECONDS = Counter("puna_runner_image_seconds_total", "Time to decode and encode images, beside the decode calls")
REQUESTS = Counter("puna_runner_requests_total", "Requests that ended, by how", ["reason"])

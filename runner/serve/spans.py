"""What a sequence took, as spans: timed by the engine's thread, which knows of no trace."""

import time

from common.clock import NS_PER_S
from common.telemetry.tracing import Span
from runner.engine.contract.engine import SequenceTimes


def trace_times(span: Span, times: SequenceTimes, *, outcome: str, generated_tokens: int) -> None:
    """Prompt and answer as parts of the request's span, which ends about now."""
    span.set(
        {
            "puna.outcome": outcome,
            "puna.slot": times.slot_id,
            "puna.queue_seconds": times.queue_ns / NS_PER_S,
            "puna.cached_tokens": times.cached_tokens,
            "gen_ai.usage.input_tokens": times.prompt_tokens,
            "gen_ai.usage.output_tokens": generated_tokens,
        }
    )
    end = time.time_ns()
    first_token = end - times.generate_ns
    span.part(
        "prompt",
        start_unix_ns=first_token - times.prompt_ns,
        end_unix_ns=first_token,
        attributes={"puna.tokens": times.evaluated_tokens},
    )
    span.part("decode", start_unix_ns=first_token, end_unix_ns=end, attributes={"puna.tokens": generated_tokens})

"""Speed of a runner as it measured it, from which a first token is predicted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPace:
    """Figures of one replica. Zeros: not known yet."""

    batch_tokens: int = 0  # most inputs of one decode call
    call_s: float = 0.0  # of a decode call, besides its inputs
    token_s: float = 0.0  # of each input; call_s and token_s are one line, known together
    bytes_per_token: float = 0.0  # of the prompts so far
    answer_tokens: float = 0.0  # mean length of the answers so far


UNKNOWN_PACE = RunnerPace()

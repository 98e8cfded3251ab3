"""Evaluation of guessed tokens by a runner, as it reports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Counts since the start of the runner, and the measured figures that decide how many guesses a call evaluates."""

    off_reason: str = ""  # why no guess is ever evaluated; empty: they are, for requests that ask for them
    drafted_tokens: int = 0  # guesses that were evaluated
    accepted_tokens: int = 0  # those of them that were right
    drafters_off: int = 0  # switched off for one sequence, because they failed or were slow
    call_ms: float = 0.0  # of a decode call with one input; 0: durations are not known yet
    draft_ms: float = 0.0  # of one token that the draft model guesses; 0: there is none
    draft_off_reason: str = ""  # why the draft model of the layout is not used; empty: it is, or there is none
    paying_share: float | None = None  # fewest right guesses that pay for one sequence; None: none do, or not known

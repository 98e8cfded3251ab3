"""Crashes in a row of one model on one node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashRow:
    """Replicas that ended unexpectedly, none of which had served for long."""

    model_name: str
    node_id: str
    crashes: int
    first_s: float
    last_s: float
    retry_at_s: float  # the model is not loaded here before
    excluded_until_s: float | None  # other nodes are preferred until then; None: they are not
    error: str  # of the last crash

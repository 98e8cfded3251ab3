"""How long a runner has been silent. Pure.

The time during which the listener itself did not run (stopped, starved, suspended) proves nothing about the other side
and is not counted: a host that wakes after a minute must not kill its healthy runners.
"""


def lengthen_silence(silence_s: float, *, elapsed_s: float, heard: bool, look_interval_s: float) -> float:
    """The silence after another look, `elapsed_s` after the last one; a look counts for two intervals at most."""
    return 0.0 if heard else silence_s + min(elapsed_s, 2 * look_interval_s)

"""Time that compute threads spin at their barriers before they sleep. Pure.

Between two operations of a graph all threads meet, hundreds of times per token. Where the cores are theirs alone,
spinning is right: going to sleep and being woken costs more than the wait. Where others want the cores too, spinning is
wrong: it takes the core from the very thread that is waited for. On two cores 57 million parameters made 690 tokens/s
with long spinning and 250 with short; with other work on the cores 70 and 600.
"""

from typing import NamedTuple

# Of what the cores can do. Fewer than this is the event loop's and the gateway's share of a stream.
OTHERS_SHARE_MAX = 0.25
# Of the time in which our threads wanted to run.
WAITING_SHARE_MAX = 0.2
# Of all threads together; by less, as of one call after a pause, it is not decided.
SEEN_S_MIN = 0.1
HOLD_MIN_S, HOLD_MAX_S = 2.0, 32.0


class ProcessorTimes(NamedTuple):
    """Counters of the system so far, in seconds."""

    now_s: float
    busy_s: float  # of the cores that we may use, by any process
    own_s: float  # CPU time of this process
    waiting_s: float  # time in which threads of this process wanted to run and had no core


class SpinRule:
    """Decides from one look to the next whether waiting threads spin only shortly."""

    def __init__(self, *, cores: int) -> None:
        """Short until the first look has shown that the cores are free."""
        self._cores = cores
        self._before: ProcessorTimes | None = None
        self._held_until_s = 0.0
        self._hold_s = HOLD_MIN_S
        self._long_since_s = 0.0
        self.short = True

    def look(self, counters: ProcessorTimes) -> bool:
        """Take in new counters; return whether to spin shortly from now on."""
        before = self._before or counters
        waited_s, own_s = counters.waiting_s - before.waiting_s, counters.own_s - before.own_s
        if not self.short and waited_s + own_s < SEEN_S_MIN:
            return self.short
        self._before = counters
        if counters.now_s <= before.now_s:
            return self.short
        if self.short:
            able_s = (counters.now_s - before.now_s) * self._cores
            others = max(0.0, counters.busy_s - before.busy_s - own_s) / able_s
            if others <= OTHERS_SHARE_MAX and counters.now_s >= self._held_until_s:
                self.short = False
                self._long_since_s = counters.now_s
        elif waited_s > WAITING_SHARE_MAX * (waited_s + own_s):
            self._go_short(counters.now_s)
        return self.short

    def _go_short(self, now_s: float) -> None:
        """Back to short; for longer each time if the last try was in vain soon."""
        soon = now_s - self._long_since_s < self._hold_s
        self._hold_s = min(HOLD_MAX_S, 2 * self._hold_s) if soon else HOLD_MIN_S
        self._held_until_s = now_s + self._hold_s
        self.short = True

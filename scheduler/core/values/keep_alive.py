"""How long an idle replica stays. Pure: what was asked and when it was last used in, a moment out."""

import math
from dataclasses import dataclass

from scheduler.core.values.view import RunnerView


@dataclass(slots=True, kw_only=True)
class ReplicaMemo:
    """What the scheduler remembers of a replica beside its host's reports."""

    generation: int
    ready_since_s: float
    idle_since_s: float | None  # None: busy
    # A caller was just sent here, and its request is on the way.
    sent_at_s: float | None = None
    sent_at_requests: int = 0
    # The newest keep_alive that was asked of the scheduler, and what the runner said at that moment.
    asked_ms: int | None = None
    asked_beside_ms: int | None = None
    counted_requests: int = 0  # of those that the runner has accepted

    def see(self, runner: RunnerView, now_s: float) -> None:
        """Take in a report that was just received."""
        self.idle_since_s = None if runner.is_busy else now_s - runner.idle_ms / 1000

    def send_caller(self, runner: RunnerView, now_s: float) -> None:
        """A caller is told to use this replica."""
        self.sent_at_s = now_s
        self.sent_at_requests = runner.requests_total

    def ask(self, keep_alive_ms: int, runner_keep_alive_ms: int | None) -> None:
        """A caller asked the scheduler for a keep_alive."""
        self.asked_ms = keep_alive_ms
        self.asked_beside_ms = runner_keep_alive_ms

    def awaits_request(self, runner: RunnerView, now_s: float, grace_s: float) -> bool:
        """Whether somebody was sent here a moment ago whose request has not arrived."""
        return (
            self.sent_at_s is not None
            and runner.requests_total <= self.sent_at_requests
            and now_s < self.sent_at_s + grace_s
        )

    def keep_alive_ms(self, runner: RunnerView, default_ms: int) -> int:
        """The newest wish: the scheduler's unless the runner has heard another one since."""
        if self.asked_ms is not None and runner.keep_alive_ms == self.asked_beside_ms:
            return self.asked_ms
        return default_ms if runner.keep_alive_ms is None else runner.keep_alive_ms

    def idle_s(self, now_s: float) -> float:
        """Seconds without a sequence; 0 while busy."""
        return 0.0 if self.idle_since_s is None else max(0.0, now_s - self.idle_since_s)


def expires_at_s(memo: ReplicaMemo, runner: RunnerView, *, default_ms: int, grace_s: float) -> float | None:
    """When an idle replica is to go. None: it is busy. Infinite: it was asked to stay for ever.

    A caller that was sent here starts the time anew, and has `grace_s` to arrive however short the wish is.
    """
    keep_alive_ms = memo.keep_alive_ms(runner, default_ms)
    if keep_alive_ms < 0:
        return math.inf
    if memo.idle_since_s is None:
        return None
    expiry_s = memo.idle_since_s + keep_alive_ms / 1000
    if memo.sent_at_s is not None and runner.requests_total <= memo.sent_at_requests:
        expiry_s = max(expiry_s, memo.sent_at_s + max(keep_alive_ms / 1000, grace_s))
    return expiry_s

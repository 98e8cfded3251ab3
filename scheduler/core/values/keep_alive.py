"""How long an idle replica stays. Pure: what was asked and when it was last used in, a moment out."""

import math
from dataclasses import dataclass

from scheduler.core.values.desired import DesiredPlacement
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
    renewed_at_s: float | None = None  # somebody wanted it loaded, without a request that follows
    # The newest keep_alive that was asked of the scheduler, and what the runner had heard by then.
    asked_ms: int | None = None
    asked_beside_ms: int | None = None
    asked_beside_wishes: int = 0
    counted_requests: int = 0  # of those that the runner has accepted

    def see(self, runner: RunnerView, now_s: float) -> None:
        """Take in a report that was just received."""
        self.idle_since_s = None if runner.is_busy else now_s - runner.idle_ms / 1000

    def send_caller(self, runner: RunnerView, now_s: float) -> None:
        """A caller is told to use this replica."""
        self.sent_at_s = now_s
        self.sent_at_requests = runner.requests_total

    def renew(self, now_s: float) -> None:
        """A caller wants it loaded, no more: keep_alive starts anew, and nobody is waited for."""
        self.renewed_at_s = now_s

    def ask(self, keep_alive_ms: int, runner: RunnerView) -> None:
        """A caller asked the scheduler for a keep_alive."""
        self.asked_ms = keep_alive_ms
        self.asked_beside_ms = runner.keep_alive_ms
        self.asked_beside_wishes = runner.keep_alive_wishes

    def take_over(self, record: DesiredPlacement) -> None:
        """What a leader wrote that it was asked for. The newer wish stays; this scheduler's own, if nobody can tell."""
        heard = record.keep_alive_heard if record.generation == self.generation else 0
        if self.asked_ms is None or (record.keep_alive_ms is not None and heard > self.asked_beside_wishes):
            self.asked_ms, self.asked_beside_wishes = record.keep_alive_ms, heard

    def awaits_request(self, runner: RunnerView, now_s: float, grace_s: float) -> bool:
        """Whether somebody was sent here a moment ago whose request has not arrived."""
        return (
            self.sent_at_s is not None
            and runner.requests_total <= self.sent_at_requests
            and now_s < self.sent_at_s + grace_s
        )

    def keep_alive_ms(self, runner: RunnerView, default_ms: int) -> int:
        """The newest wish: the scheduler's unless the runner has heard another one since."""
        if self.asked_ms is not None and not self._has_heard_since(runner):
            return self.asked_ms
        return default_ms if runner.keep_alive_ms is None else runner.keep_alive_ms

    def _has_heard_since(self, runner: RunnerView) -> bool:
        """Whether the runner has heard a wish after the scheduler did."""
        if runner.keep_alive_wishes:
            return runner.keep_alive_wishes > self.asked_beside_wishes
        # A build that does not count them: the same value again is not seen.
        return runner.keep_alive_ms != self.asked_beside_ms

    def idle_s(self, now_s: float) -> float:
        """Seconds without a sequence; 0 while busy."""
        return 0.0 if self.idle_since_s is None else max(0.0, now_s - self.idle_since_s)


def expires_at_s(memo: ReplicaMemo, runner: RunnerView, *, default_ms: int, grace_s: float) -> float | None:
    """When an idle replica is to go. None: it is busy. Infinite: it was asked to stay for ever.

    A caller that was sent here starts the time anew, and has `grace_s` to arrive however short the wish is. One that
    only wanted it loaded starts the time anew.
    """
    keep_alive_ms = memo.keep_alive_ms(runner, default_ms)
    if keep_alive_ms < 0:
        return math.inf
    if memo.idle_since_s is None:
        return None
    since_s = memo.idle_since_s if memo.renewed_at_s is None else max(memo.idle_since_s, memo.renewed_at_s)
    expiry_s = since_s + keep_alive_ms / 1000
    if memo.sent_at_s is not None and runner.requests_total <= memo.sent_at_requests:
        expiry_s = max(expiry_s, memo.sent_at_s + max(keep_alive_ms / 1000, grace_s))
    return expiry_s

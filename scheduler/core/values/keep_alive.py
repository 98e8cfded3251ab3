"""Life of an idle replica. Pure: keep_alive and time of last use in, a moment out."""

import math
from dataclasses import dataclass

from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.view import RunnerView


@dataclass(slots=True, kw_only=True)
class TrackedReplica:
    """Memory of the scheduler about a replica beside its host's reports."""

    generation: int
    ready_since_s: float
    idle_since_s: float | None  # None: busy
    # A caller was just sent here, and its request is on the way.
    sent_at_s: float | None = None
    sent_at_requests: int = 0
    renewed_at_s: float | None = None  # loaded on demand, without a request that follows
    # The newest keep_alive that was asked of the scheduler, and what the runner had heard by then.
    asked_ms: int | None = None
    asked_beside_ms: int | None = None
    asked_beside_requests: int = 0
    counted_requests: int = 0  # of those that the runner has accepted

    def see(self, runner: RunnerView, now_s: float) -> None:
        """Take in a report that was just received."""
        self.idle_since_s = None if runner.is_busy else now_s - runner.idle_ms / 1000

    def send_caller(self, runner: RunnerView, now_s: float) -> None:
        """Record that a caller was routed to this replica."""
        self.sent_at_s = now_s
        self.sent_at_requests = runner.requests_total

    def renew(self, now_s: float) -> None:
        """Record a load without a request: keep_alive starts anew, and no request is expected."""
        self.renewed_at_s = now_s

    def ask(self, keep_alive_ms: int, runner: RunnerView) -> None:
        """Record a keep_alive that a caller requested of the scheduler."""
        self.asked_ms = keep_alive_ms
        self.asked_beside_ms = runner.keep_alive_ms
        self.asked_beside_requests = runner.keep_alive_requests

    def take_over(self, record: DesiredPlacement) -> None:
        """Take over a keep_alive that a leader stored. The newer one wins; if the order is unknown, this one's own."""
        heard = record.keep_alive_heard if record.generation == self.generation else 0
        if self.asked_ms is None or (record.keep_alive_ms is not None and heard > self.asked_beside_requests):
            self.asked_ms, self.asked_beside_requests = record.keep_alive_ms, heard

    def awaits_request(self, runner: RunnerView, now_s: float, grace_s: float) -> bool:
        """Return True if a request was routed here a moment ago and has not arrived."""
        return (
            self.sent_at_s is not None
            and runner.requests_total <= self.sent_at_requests
            and now_s < self.sent_at_s + grace_s
        )

    def keep_alive_ms(self, runner: RunnerView, default_ms: int) -> int:
        """Return the newest keep_alive: the scheduler's unless the runner has received another one since."""
        if self.asked_ms is not None and not self._has_heard_since(runner):
            return self.asked_ms
        return default_ms if runner.keep_alive_ms is None else runner.keep_alive_ms

    def _has_heard_since(self, runner: RunnerView) -> bool:
        """Return True if the runner has received a keep_alive after the scheduler did."""
        if runner.keep_alive_requests:
            return runner.keep_alive_requests > self.asked_beside_requests
        # A build that does not count them: the same value again is not seen.
        return runner.keep_alive_ms != self.asked_beside_ms

    def idle_s(self, now_s: float) -> float:
        """Return the seconds without a sequence; 0 while busy."""
        return 0.0 if self.idle_since_s is None else max(0.0, now_s - self.idle_since_s)


def expires_at_s(tracked: TrackedReplica, runner: RunnerView, *, default_ms: int, grace_s: float) -> float | None:
    """Return when an idle replica should stop. None: it is busy. Infinite: it stays for ever.

    A routed caller restarts the time and has `grace_s` to arrive, however short the keep_alive is. A load without a
    request restarts the time too.
    """
    keep_alive_ms = tracked.keep_alive_ms(runner, default_ms)
    if keep_alive_ms < 0:
        return math.inf
    if tracked.idle_since_s is None:
        return None
    since_s = tracked.idle_since_s if tracked.renewed_at_s is None else max(tracked.idle_since_s, tracked.renewed_at_s)
    expiry_s = since_s + keep_alive_ms / 1000
    if tracked.sent_at_s is not None and runner.requests_total <= tracked.sent_at_requests:
        expiry_s = max(expiry_s, tracked.sent_at_s + max(keep_alive_ms / 1000, grace_s))
    return expiry_s

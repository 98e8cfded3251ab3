"""One model's queue: bounded, replicas bound late; `fairness` has its order. Pure: no clock, no waiting."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from common.errors import QueueFull
from gateway.core.dispatch.fairness import NO_CLAIM, NO_TENANT, SlotClaim, WaitingCounts
from gateway.core.dispatch.replica_choice import ReplicaCandidate, ReplicaNeed, choose_replica, is_able

# A cold model has no slots to count; runners have 8 by default.
_SLOTS_ASSUMED = 8
_WAITING_MIN = 16
_WAITING_PER_SLOT = 4
# Prompts that are kept while they wait, images included, over all models of a gateway.
_WAITING_BYTES_MAX = 64 * 1024 * 1024
# Of a queue's places, this part is never one tenant's alone.
_KEPT_FOR_OTHERS = 0.25
_RETRY_AFTER_S_MIN = 1.0
_RETRY_AFTER_S_MAX = 60.0
_JITTER = 0.2
# Weight of the newest interval in the measured drain rate.
_DRAIN_WEIGHT = 0.2
BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A request that waits for a slot."""

    number: int
    need: ReplicaNeed
    claim: SlotClaim = NO_CLAIM


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A waiter may go to a replica."""

    number: int
    replica_key: str


def waiting_max(*, slots_total: int, queue_max: int) -> int:
    """Return the largest number of requests that may wait for one model."""
    return min(queue_max, max(_WAITING_MIN, _WAITING_PER_SLOT * (slots_total or _SLOTS_ASSUMED)))


def tenant_waiting_max(places: int) -> int:
    """Return the largest number of places in a queue for one tenant, so that a loud one leaves room for a quiet one."""
    return max(places - max(round(places * _KEPT_FOR_OTHERS), 1), 1)


def check_room(
    claim: SlotClaim, waiting: WaitingCounts, *, slots_total: int, queue_max: int, retry_after_s: float
) -> None:
    """Let one more request wait. Those of lower bands, which it passes, take no place from it below `queue_max`.

    Raises:
        QueueFull: the bound is reached; tell the client when to come again.
    """
    before = waiting.up_to(claim.band)
    places = waiting_max(slots_total=slots_total, queue_max=queue_max - (waiting.total - before))
    own = waiting.of_tenant(claim.tenant, claim.band) if claim.tenant != NO_TENANT else 0
    if before >= places or own >= tenant_waiting_max(places):
        raise QueueFull(BUSY_TEXT, retry_after_s=retry_after_s)


def check_bytes(*, waiting: int, more: int, retry_after_s: float) -> None:
    """Let one more prompt wait, of any model; a single one may always.

    Raises:
        QueueFull: those that wait fill their share of memory.
    """
    if waiting and waiting + more > _WAITING_BYTES_MAX:
        raise QueueFull(BUSY_TEXT, retry_after_s=retry_after_s)


def plan_grants(waiters: Sequence[Waiter], candidates: Iterable[ReplicaCandidate]) -> list[Grant]:
    """Give slots to waiters in their order; one that no replica suits does not hold up the others."""
    free = {candidate.key: candidate for candidate in candidates}
    grants: list[Grant] = []
    for waiter in waiters:
        if not any(candidate.slots_free or any(candidate.slots_open) for candidate in free.values()):
            break
        key = choose_replica(free.values(), waiter.need, waiter.claim.band)
        if key is not None:
            grants.append(Grant(number=waiter.number, replica_key=key))
            taken = free[key].taken()
            free[key] = replace(taken, has_suspect=taken.has_suspect or waiter.need.is_suspect)
    return grants


def needs_load(waiter: Waiter, candidates: Iterable[ReplicaCandidate]) -> bool:
    """Return True if no running replica will ever serve the waiter, however long it waits."""
    return not any(is_able(candidate, waiter.need) for candidate in candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRate:
    """Requests that end per second while any run, as an exponential average over the intervals between ends.

    A pause in which nothing runs is no slow answer: the first interval after it begins with the first request.
    """

    interval_s: float | None = None
    running: int = 0
    since_s: float = 0.0  # the newest end, or the first start after a pause

    def after_start(self, now_s: float) -> "DrainRate":
        """Count one more running request."""
        return replace(self, running=self.running + 1, since_s=self.since_s if self.running else now_s)

    def after_end(self, now_s: float) -> "DrainRate":
        """Count an ended request."""
        newest_s = now_s - self.since_s
        old_s = newest_s if self.interval_s is None else self.interval_s
        interval_s = old_s + _DRAIN_WEIGHT * (newest_s - old_s)
        return DrainRate(interval_s=interval_s, running=self.running - 1, since_s=now_s)

    def after_cancel(self) -> "DrainRate":
        """Count a request that was canceled before it began."""
        return replace(self, running=self.running - 1)


def retry_after_s(*, work_ahead: int, drain: DrainRate, jitter: float) -> float:
    """Return the time to wait before a retry: work ahead over the drain rate, with a jitter of -1..1 against herds."""
    expected_s = work_ahead * (drain.interval_s if drain.interval_s is not None else _RETRY_AFTER_S_MIN)
    return min(max(expected_s * (1 + _JITTER * jitter), _RETRY_AFTER_S_MIN), _RETRY_AFTER_S_MAX)

"""Cores of a node: how many compute fastest, and their division between runners. Pure.

Compute threads meet at a barrier hundreds of times a token. Where more of them compute than there are cores, every
barrier waits for one that has none. So runners that have work share the cores, and one that rests holds none of them:
it receives what it would get if its work began now, and begins with that.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

# Work counts once it has lasted this long: a short request slows no other runner down.
SETTLE_S = 0.1
# And for so long after its end: the next question of a conversation, or of a row of them, changes nothing.
RELEASE_S = 1.0
# A core that can do less than this of what the fastest can holds the others up at every barrier.
CAPACITY_SHARE_MIN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreClaim:
    """Request of one runner for cores."""

    threads_max: int  # without other runners; at least 1
    busy: bool
    fixed: bool = False  # set by a user: they count, and stay


@dataclass(slots=True)
class _Work:
    """Activity of a runner over time."""

    busy: bool = False
    began_s: float = 0.0
    last_s: float = float("-inf")  # when it was last seen busy
    counts: bool = False

    def see(self, *, busy: bool, now_s: float) -> None:
        if busy and not self.busy and now_s > self.last_s + SETTLE_S:
            self.began_s = now_s
        if busy or self.busy:  # until now, as far as known
            self.last_s = now_s
        self.busy = busy
        if busy:
            self.counts = self.counts or now_s >= self.began_s + SETTLE_S
        elif now_s >= self.last_s + RELEASE_S:
            self.counts = False

    def due_s(self) -> float | None:
        """Return when the passing of time alone changes the activity; None: never."""
        if self.busy == self.counts:
            return None
        return self.began_s + SETTLE_S if self.busy else self.last_s + RELEASE_S


@dataclass(slots=True)
class CoreDivision:
    """Owned by the task that notifies the runners."""

    cores: int
    _work: dict[str, _Work] = field(default_factory=dict)

    def divide(self, claims: Mapping[str, CoreClaim], now_s: float) -> dict[str, int]:
        """Return the threads of every reachable runner, by its key; at least 1 each."""
        self._work = {key: self._work.get(key, _Work()) for key in claims}
        for key, claim in claims.items():
            self._work[key].see(busy=claim.busy, now_s=now_s)
        working = {key for key, work in self._work.items() if work.counts}
        taken = sum(claims[key].threads_max for key in working if claims[key].fixed)
        wants = {key: claim.threads_max for key, claim in claims.items() if not claim.fixed}
        sharing = {key for key in wants if key in working}
        shares = _share(wants, sharing, self.cores - taken)
        for key in wants.keys() - sharing:
            shares[key] = _share(wants, sharing | {key}, self.cores - taken)[key]
        return shares

    def due_s(self) -> float | None:
        """Return when to divide again without a new report; None: not before one."""
        return min((due for work in self._work.values() if (due := work.due_s()) is not None), default=None)


def _share(wants: Mapping[str, int], keys: Collection[str], cores: int) -> dict[str, int]:
    """Equal shares; what one does not want is the others'. The last of equal ones get what is left over."""
    shares: dict[str, int] = {}
    for count, key in enumerate(sorted(keys, key=lambda key: (wants[key], key))):
        shares[key] = max(1, min(wants[key], cores // (len(keys) - count)))
        cores -= shares[key]
    return shares


def parse_cpus(text: str) -> frozenset[int]:
    """Read the kernel's "0-3,8".

    Raises:
        ValueError: it is something else.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def fast_cpus(cpus: Collection[int], *, performance: Collection[int], capacities: Mapping[int, int]) -> frozenset[int]:
    """Those that are of the fast kind. `performance`: as the kernel names them; else what each can do decides."""
    named = frozenset(cpus) & frozenset(performance)
    if named:
        return named
    most = max((capacities.get(cpu, 0) for cpu in cpus), default=0)
    return frozenset(cpu for cpu in cpus if capacities.get(cpu, most) >= CAPACITY_SHARE_MIN * most)


def count_cores(cpus: Iterable[int], *, siblings: Mapping[int, str], quotas: Iterable[float]) -> int:
    """Hardware threads of one core count once, and no more than processor time is granted; at least one.

    `quotas` are in processors: beyond one of them all threads stand still until the next period.
    """
    cores = len({siblings.get(cpu, str(cpu)) for cpu in cpus})
    return max(1, min([cores, *(int(quota) for quota in quotas)]))

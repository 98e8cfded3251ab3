"""Rules for continuing an answer at another replica. Pure: time comes in.

A request that was computed when its runner crashed is a suspect of that crash. It goes on as one, on probation: a
runner computes one suspect at a time, of all gateways, until that is past the place of the crash, and a crash meanwhile
is blamed on it alone. So a request that kills runners ends with its second crash. Its neighbours are blamed once for
each crash and end with none of them: a crash after the probation makes a request a suspect again, for it cannot know
whether a suspect of another gateway was computed beside it.
"""

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field

# Times that one answer may change its replica because the one before was lost. Drains do not count.
RESUMES_MAX = 5
# The crash that ends a request which was past its probation: one that kills runners at ever new places.
CRASHES_MAX = 3
# Tokens past those that had come when a runner crashed, after which a suspect has shown that it is harmless: one decode
# step past the crash itself, and what was computed by then and still on its way.
PROBATION_TOKENS = 8
# Time for which the body of a request that killed its runners is refused, so that clients which retry do no more harm.
QUARANTINE_S = 60.0
_QUARANTINED_MAX = 1024
_NAME_BYTES = 8
# Silence of a call, prompt batches and tokens counted, after which its runner counts as hung. There is no fixed limit
# for the first token: it would cut long prompts on CPUs.
STALL_S_MIN = 30.0
STALL_AVERAGES = 20.0
STALL_UNKNOWN_S = 120.0
_GAP_WEIGHT = 0.05
# Pause of an answer between two replicas before it requests one again: this share of its wait so far, and never so long
# that a stream would pause for more than the load and two seconds.
_AGAIN_SHARE = 0.25
AGAIN_S_MIN = 0.5
AGAIN_S_MAX = 1.5
# Where the refusal named a longer time. Not all of that: it is a forecast.
AGAIN_S_TOLD_MAX = 5.0
# Retries before the first event that a gateway makes: at most this part of its requests, beyond a reserve for the
# death of a replica with everything on it.
RETRY_SHARE = 0.1
RETRY_RESERVE = 128.0


def stall_after_s(average_gap_s: float | None, *, begun: bool) -> float:
    """Return the longest silence of a healthy call; `begun`: it has a slot and has sent something."""
    if average_gap_s is None:
        return STALL_UNKNOWN_S
    longest_s = max(STALL_S_MIN, STALL_AVERAGES * average_gap_s)
    return longest_s if begun else max(longest_s, STALL_UNKNOWN_S)


def average_after(average_gap_s: float | None, gap_s: float) -> float:
    """Return the moving average of the time between two events of a replica's calls."""
    return gap_s if average_gap_s is None else average_gap_s + _GAP_WEIGHT * (gap_s - average_gap_s)


def again_after_s(waited_s: float, retry_after_s: float | None) -> float:
    """Return when to repeat a refused request; `retry_after_s`: the refusal's own hint, if any."""
    if retry_after_s is not None and retry_after_s > AGAIN_S_MAX:
        return min(retry_after_s, AGAIN_S_TOLD_MAX)
    return min(max(_AGAIN_SHARE * waited_s, AGAIN_S_MIN), AGAIN_S_MAX)


@dataclass(slots=True, kw_only=True)
class Suspicion:
    """Crashes that one request is blamed for."""

    crashes: int = 0
    is_computed: bool = False  # it is the only suspect that its replica computes
    is_proven: bool = False  # its replica crashed then
    harmless_from: int = 0  # tokens of the answer; while on probation

    @property
    def is_suspect(self) -> bool:
        """True if it goes on as a suspect."""
        return self.crashes > 0

    @property
    def is_poison(self) -> bool:
        """True if no runner may see it again."""
        return self.is_proven or self.crashes >= CRASHES_MAX

    @property
    def is_past_probation(self) -> bool:
        """True if it may be computed beside other suspects."""
        return self.is_suspect and not self.is_computed

    def crashed(self, *, answer_tokens: int) -> None:
        """Record a crash of its runner that no other suspect is blamed for."""
        self.crashes += 1
        self.is_proven = self.is_computed
        self.harmless_from = answer_tokens + PROBATION_TOKENS

    def is_past(self, answer_tokens: int) -> bool:
        """Return True once the place of the crash lies behind it."""
        return answer_tokens >= self.harmless_from


@dataclass(slots=True)
class RetryBudget:
    """Of one gateway. A storm of retries must not become the load that it answers to."""

    left: float = RETRY_RESERVE

    def earn(self) -> None:
        """Note one more request."""
        self.left = min(self.left + RETRY_SHARE, RETRY_RESERVE)

    def spend(self) -> bool:
        """Take one retry; False: there is none left."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


def poison_name(body: str, *, salt: str) -> bytes:
    """Return the schedulers' name of a request that killed its runners. `salt`: its tenant's, equal at all gateways."""
    return hmac.digest(salt.encode(), body.encode(errors="surrogatepass"), hashlib.sha256)[:_NAME_BYTES]


@dataclass(slots=True)
class Quarantine:
    """Requests that killed their runners: MACs of question and tenant, never the requests themselves."""

    secret: bytes
    _until_s: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    def add(self, tenant: str, body: str, now_s: float) -> None:
        """Refuse this body of this tenant for a while."""
        self._until_s[self._mac(tenant, body)] = now_s + QUARANTINE_S
        while len(self._until_s) > _QUARANTINED_MAX:
            self._until_s.popitem(last=False)

    def is_empty(self, now_s: float) -> bool:
        """Return True if nothing is refused, so that no request needs a hash."""
        while self._until_s and next(iter(self._until_s.values())) <= now_s:
            self._until_s.popitem(last=False)
        return not self._until_s

    def remaining_s(self, tenant: str, body: str, now_s: float) -> float:
        """Return the remaining time of a request's refusal; 0: none."""
        return max(self._until_s.get(self._mac(tenant, body), now_s) - now_s, 0.0)

    def _mac(self, tenant: str, body: str) -> bytes:
        return hmac.digest(self.secret, f"{tenant}\0{body}".encode(errors="surrogatepass"), hashlib.sha256)

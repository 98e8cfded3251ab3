"""Answers to random input: how many, of which status, how fast, and what was wrong with them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# Input that is refused costs nearly nothing; what is accepted is answered as long as its own limits allow.
REFUSED_S_MAX = 2.0
ACCEPTED_S_MAX = 10.0
SENT_AGAIN_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer. `request` describes what it answers; `fault` is empty if nothing but its time can be wrong."""

    status: str
    is_refused: bool
    took_s: float
    request: str
    fault: str = ""

    @property
    def is_slow(self) -> bool:
        """Return True if it took longer than such an answer may take."""
        return self.took_s > (REFUSED_S_MAX if self.is_refused else ACCEPTED_S_MAX)


@dataclass(slots=True)
class Answers:
    """The answers of a run."""

    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    slowest_refusal_s: float = 0.0
    slowest_s: float = 0.0
    faults: list[str] = field(default_factory=list)

    def take(self, send: Callable[[], Answer | None]) -> None:
        """Send a request and count its answer; None: no client can send it.

        A slow one is sent again: slow each time, it is a fault. Other work on the machine delays one of a few.
        """
        answer = best = send()
        sent_again = 0
        while answer is not None and best is not None:
            if answer.fault:
                self.faults.append(f"{answer.fault} to {answer.request}")
            best = min(best, answer, key=lambda one: one.took_s)
            if not best.is_slow or sent_again == SENT_AGAIN_MAX:
                break
            sent_again += 1
            answer = send()
        if best is None:
            return
        self.cases += 1
        self.statuses[best.status] += 1
        self.slowest_s = max(self.slowest_s, best.took_s)
        if best.is_refused:
            self.slowest_refusal_s = max(self.slowest_refusal_s, best.took_s)
        if best.is_slow:
            self.faults.append(f"{best.took_s:.1f} s: {best.status} to {best.request}")

    def __str__(self) -> str:
        """Return the counts in one line."""
        times = f"slowest {self.slowest_s:.2f} s, of refusals {self.slowest_refusal_s:.2f} s"
        return f"{self.cases} cases, {dict(sorted(self.statuses.items()))}, {times}"

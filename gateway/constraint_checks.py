"""Checks of constraints before they get a slot: what is refused, or takes long to compile, costs its sender alone.

A constraint is compiled in a quick worker for a short time, and in a slow one, which yields to everything else, if that
was not enough, if it is large, or if its sender has used much of late. Runners get it translated, so that they need not
parse it again.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import orjson

from common.clock import Clock
from common.errors import InvalidRequest, QueueFull
from common.sandbox.worker_pool import WorkerLost, WorkerPool
from common.telemetry.logs import get_logger
from common.tenant_cache import TenantCache
from gateway import metrics
from gateway.core.request.constraint import Constraint

log = get_logger()

PASSED_MAX = 128
REFUSED_MAX = 1024
# For so long a refused one is refused unseen.
REFUSAL_KEPT_S = 60.0
# CPU time of one compilation; usual schemas take 3 ms.
QUICK_CPU_S_MAX, SLOW_CPU_S_MAX = 0.25, 2.0
# A larger one takes 3 to 9 ms a kilobyte, so it would often be ended and compiled again.
QUICK_BYTES_MAX = 32 * 1024
# CPU time of the start of a worker, which replaces one that was ended.
START_CPU_S = 0.25
# CPU time that a sender may owe: above the first it uses the slow worker, above the second it is refused.
QUICK_DEBT_S_MAX, DEBT_S_MAX = 0.25, 1.0
# Share of a core that a sender's compilations may have in the long run, at gateway and runner together.
CORE_SHARE = 0.05
# Of the slow worker: answers come first. With more, a busy machine would leave it nothing.
_SLOW_NICENESS = 10
_DEBTORS_MAX = 1024
# A slow one is compiled by runners for one request of a sender at a time, because that holds a slot.
SLOW_S = 0.02
_MODULE = "runner.check_constraints"
_BUSY = "too many schemas and grammars are being compiled; please try again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    message: str
    param: str
    until_s: float


@dataclass(frozen=True, slots=True)
class _Passed:
    lark: str
    is_slow: bool


class _Debts:
    """CPU time that senders have used; CORE_SHARE of a core pays it off."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paid_at_s: dict[str, float] = {}

    def of(self, sender: str) -> float:
        """Return the CPU seconds that a sender owes."""
        now_s = self._clock.now_s()
        return (self._paid_at_s.get(sender, now_s) - now_s) * CORE_SHARE

    def add(self, sender: str, cpu_s: float) -> None:
        """Add used CPU seconds."""
        now_s = self._clock.now_s()
        self._paid_at_s[sender] = max(self._paid_at_s.get(sender, now_s), now_s) + cpu_s / CORE_SHARE
        if len(self._paid_at_s) > _DEBTORS_MAX:
            self._paid_at_s = {one: at_s for one, at_s in self._paid_at_s.items() if at_s > now_s}


@dataclass(slots=True)
class SenderTurn:
    """Turn of one request, which others of its sender may wait for."""

    lock: asyncio.Lock | None = None

    def end(self) -> None:
        """Let the next one in, if that was not done."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None


class ConstraintChecks:
    """Compiles each new constraint in a worker, one at a time for each sender. `stop` after use."""

    def __init__(self, clock: Clock, sender: Callable[[], str]) -> None:
        """`sender` returns the tenant of the present task, or the address of its client where there are no keys."""
        self._clock = clock
        self._sender = sender
        self._quick = WorkerPool(_MODULE, str(QUICK_CPU_S_MAX))
        self._slow = WorkerPool(_MODULE, str(SLOW_CPU_S_MAX), workers=1, niceness=_SLOW_NICENESS)
        self._debts = _Debts(clock)
        self._passed: TenantCache[bytes, _Passed] = TenantCache(PASSED_MAX)
        self._refused: TenantCache[bytes, _Refusal] = TenantCache(REFUSED_MAX)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def stop(self) -> None:
        """End the workers. Nothing may be checked any more."""
        await self._quick.stop()
        await self._slow.stop()

    def check_debt(self, constraints: Iterable[Constraint]) -> None:
        """Refuse a request that `check` would refuse for its sender's debt, whichever of these its constraint is.

        Raises:
            QueueFull: the sender has used too much of the processors, and all of them would have to be compiled.
        """
        sender = self._sender()
        if self._debts.of(sender) <= DEBT_S_MAX:
            return
        keys = (_key(_frame(one)) for one in constraints)
        if not any(self._refusal(sender, key) or self._passed.get(sender, key) for key in keys):
            raise self._in_debt(sender)

    async def check(self, constraint: Constraint) -> Constraint:
        """Return a constraint, translated for runners, once it is known to compile within its limits.

        Raises:
            InvalidRequest: it does not; names the field as runners call it.
            QueueFull: no worker became free in time, it had too little of the processors, or the sender has used too
                much of them.
        """
        frame = _frame(constraint)
        key, sender = _key(frame), self._sender()
        passed = self._known(sender, key)
        if passed is None:
            try:
                passed = await self._compile(sender, key, frame)
            except TimeoutError as error:
                raise QueueFull(_BUSY, retry_after_s=1.0) from error
        return replace(constraint, lark=passed.lark, is_slow=passed.is_slow)

    async def turn(self, constraint: Constraint) -> "SenderTurn":
        """Wait until a slot may be taken for a constraint; end the turn once a runner has compiled it."""
        if not constraint.is_slow:
            return SenderTurn()
        lock = self._turns.setdefault(self._sender(), asyncio.Lock())
        await lock.acquire()
        return SenderTurn(lock)

    def _known(self, sender: str, key: bytes) -> _Passed | None:
        """Return a constraint that has passed; raise if it was refused."""
        if (refusal := self._refusal(sender, key)) is not None:
            raise InvalidRequest(refusal.message, param=refusal.param)
        return self._passed.get(sender, key)

    def _refusal(self, sender: str, key: bytes) -> _Refusal | None:
        refusal = self._refused.get(sender, key)
        return refusal if refusal is not None and refusal.until_s > self._clock.now_s() else None

    def _in_debt(self, sender: str) -> QueueFull:
        return QueueFull(_BUSY, retry_after_s=1.0 + (self._debts.of(sender) - DEBT_S_MAX) / CORE_SHARE)

    async def _compile(self, sender: str, key: bytes, frame: bytes) -> _Passed:
        attempts = (
            (self._quick, QUICK_DEBT_S_MAX, QUICK_CPU_S_MAX),
            (self._slow, DEBT_S_MAX, SLOW_CPU_S_MAX),
        )
        for pool, debt_s_max, cpu_s_max in attempts:
            if self._debts.of(sender) > debt_s_max or (pool is self._quick and len(frame) > QUICK_BYTES_MAX):
                continue
            async with pool.worker(sender) as worker:
                passed = self._known(sender, key)
                if passed is not None:  # through the request before this one
                    return passed
                if self._debts.of(sender) > debt_s_max:
                    continue
                try:
                    answer = orjson.loads(await worker.ask(frame))
                except asyncio.CancelledError:
                    self._debts.add(sender, cpu_s_max + START_CPU_S)
                    raise
                except WorkerLost as error:
                    self._debts.add(sender, cpu_s_max + START_CPU_S)
                    if pool is self._quick and not error.was_late:
                        continue
                    log.warning("constraint.killed", limit="wall time" if error.was_late else "cpu or memory")
                    metrics.KILLED_CONSTRAINTS.inc()
                    if error.was_late:  # others have the processors
                        raise QueueFull(_BUSY, retry_after_s=1.0) from error
                    answer = _too_slow(frame)
                return self._decide(sender, key, answer)
        raise self._in_debt(sender)

    def _decide(self, sender: str, key: bytes, answer: dict[str, Any]) -> _Passed:
        """Remember what a worker found out."""
        cpu_s: float = answer["cpu_s"]
        if "error" in answer:
            self._debts.add(sender, cpu_s)
            until_s = self._clock.now_s() + REFUSAL_KEPT_S
            self._refused.put(sender, key, _Refusal(message=answer["error"], param=answer["param"], until_s=until_s))
            raise InvalidRequest(answer["error"], param=answer["param"])
        self._debts.add(sender, 2 * cpu_s)  # a runner compiles it again
        passed = _Passed(answer["lark"], cpu_s >= SLOW_S)
        self._passed.put(sender, key, passed)
        return passed


def _too_slow(frame: bytes) -> dict[str, Any]:
    kind = orjson.loads(frame)["kind"]
    text = f"{kind} takes too long or too much memory to compile; make it smaller"
    return {"error": text, "param": kind, "cpu_s": 0.0}


def _key(frame: bytes) -> bytes:
    return hashlib.sha256(frame).digest()


def _frame(constraint: Constraint) -> bytes:
    free = constraint.free_text
    return orjson.dumps(
        {
            "kind": "json_schema" if constraint.json_schema else "grammar",
            "text": constraint.json_schema or constraint.grammar,
            "free_text": (free.opening, free.closing) if free else None,
            "schemas": dict(constraint.schemas),
            "lenient": constraint.lenient,
        }
    )

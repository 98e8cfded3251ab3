"""Checks of constraints before they get a slot: what is refused, or takes long to compile, costs its tenant alone."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from common.clock import Clock
from common.errors import InvalidRequest, QueueFull
from common.sandbox.worker_pool import Worker, WorkerLost, WorkerPool
from common.telemetry.logs import get_logger
from common.tenant_cache import TenantCache
from gateway import metrics
from gateway.core.dispatch.fairness import NO_TENANT
from gateway.core.request.constraint import Constraint

log = get_logger()

# Constraints that have passed are remembered as a runner remembers them, so that a slot hardly ever waits for one that
# was not checked just before.
PASSED_MAX = 32
REFUSED_MAX = 1024
# For so long a refused one is refused unseen.
REFUSAL_KEPT_S = 60.0
_BUSY = "too many schemas and grammars are being compiled; please try again"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    message: str
    param: str
    until_s: float


class ConstraintChecks:
    """Compiles each new constraint in a worker, one at a time for each tenant. `stop` after use."""

    def __init__(self, clock: Clock, tenant: Callable[[], str]) -> None:
        """`tenant` returns the tenant of the present task; NO_TENANT, where there are no keys, has every worker."""
        self._clock = clock
        self._tenant = tenant
        self._workers = WorkerPool("runner.check_constraints")
        self._passed: TenantCache[bytes, bool] = TenantCache(PASSED_MAX)
        self._refused: TenantCache[bytes, _Refusal] = TenantCache(REFUSED_MAX)

    async def stop(self) -> None:
        """End the workers. Nothing may be checked any more."""
        await self._workers.stop()

    async def check(self, constraint: Constraint) -> None:
        """Return once a constraint is known to compile within its limits.

        Raises:
            InvalidRequest: it does not; names the field as runners call it.
            QueueFull: no worker became free in time, or it had too little of the processors.
        """
        frame = _frame(constraint)
        key, tenant = hashlib.sha256(frame).digest(), self._tenant()
        if self._is_known(tenant, key):
            return
        try:
            async with self._workers.worker(None if tenant == NO_TENANT else tenant) as worker:
                if self._is_known(tenant, key):  # from the request before this one
                    return
                if refusal := await self._refusal(worker, frame):
                    self._refused.put(tenant, key, refusal)
                    raise InvalidRequest(refusal.message, param=refusal.param)
                self._passed.put(tenant, key, True)
        except TimeoutError as error:
            raise QueueFull(_BUSY, retry_after_s=1.0) from error

    def _is_known(self, tenant: str, key: bytes) -> bool:
        """Return True if a constraint has passed; raise if it was refused."""
        refusal = self._refused.get(tenant, key)
        if refusal is not None and refusal.until_s > self._clock.now_s():
            raise InvalidRequest(refusal.message, param=refusal.param)
        return self._passed.get(tenant, key) is not None

    async def _refusal(self, worker: Worker, frame: bytes) -> _Refusal | None:
        try:
            answer = orjson.loads(await worker.ask(frame))
        except WorkerLost as error:
            log.warning("constraint.killed", limit="wall time" if error.was_late else "cpu or memory")
            metrics.KILLED_CONSTRAINTS.inc()
            if error.was_late:  # others have the processors
                raise QueueFull(_BUSY, retry_after_s=1.0) from error
            kind = orjson.loads(frame)["kind"]
            answer = {"error": f"{kind} takes too long or too much memory to compile; make it smaller", "param": kind}
        until_s = self._clock.now_s() + REFUSAL_KEPT_S
        return _Refusal(message=answer["error"], param=answer["param"], until_s=until_s) if answer else None


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

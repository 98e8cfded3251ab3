"""The engine thread of a pooled model: plan → compute → report, strictly in turn.

Nothing is prepared while a call runs, no slot keeps anything, and requests are cancelled between calls.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from common.clock import NS_PER_S
from common.errors import InternalError, PunaError
from runner.core.pooled.embedding_batches import InputDemand, InputPlan, plan_inputs
from runner.core.threads.step_times import StepTimes
from runner.engine.contract.engine import EngineListener
from runner.engine.contract.pooling import PooledEnd, PooledReport, PooledTimes, PooledVector
from runner.engine.pooled.pooled_context import PooledContext
from runner.engine.threads.engine_loop import EngineLoop
from runner.engine.threads.spinning import ComputeThreads

NOT_FINITE = "the model gave an invalid number for an input"


@dataclass(slots=True, kw_only=True)
class Job:
    """One request from submit to end. Only the engine thread touches it after `submit`."""

    id: int
    inputs: Sequence[Sequence[int]]
    input_tokens: Sequence[int]  # how many each input has
    submitted_ns: int
    next_input: int = 0
    again: deque[int] = field(default_factory=deque)  # inputs to compute once more, alone
    missing: int = 0  # inputs without a vector
    first_call_ns: int = 0
    last_call_ns: int = 0

    @property
    def demand(self) -> InputDemand:
        """Return the inputs that are left to compute."""
        if self.again:
            return InputDemand(self.id, self.input_tokens, self.again[0], alone=True)
        return InputDemand(self.id, self.input_tokens, self.next_input)

    @property
    def pending(self) -> bool:
        """Return True if any input is left to compute."""
        return bool(self.again) or self.next_input < len(self.inputs)

    def take(self) -> int:
        """Index of the next input to compute."""
        if self.again:
            return self.again.popleft()
        self.next_input += 1
        return self.next_input - 1

    def times(self) -> PooledTimes | None:
        """Return the measured times; None if no input was in a call."""
        if not self.first_call_ns:
            return None
        return PooledTimes(self.first_call_ns - self.submitted_ns, max(0, self.last_call_ns - self.first_call_ns))


class PooledLoop(EngineLoop):
    """Owns the context."""

    def __init__(
        self, context: PooledContext, listener: EngineListener, threads: ComputeThreads, times: StepTimes
    ) -> None:
        super().__init__(threads, times)
        self._context = context
        self._listener = listener
        self._jobs: dict[int, Job] = {}  # by id, which is the order of arrival
        self._report = PooledReport()
        self._reported = (0, 0)  # busy and waiting as last reported
        self._next_start = 0

    def submit(self, job: Job) -> None:
        """Compute a request."""
        self.post(partial(self._take_in, job))

    def _work(self) -> bool:
        plan = self._plan()
        if plan.rows:
            self._step(plan)
        else:
            self._tell(busy=0, waiting=0)
        return bool(plan.rows)

    def _test_idle(self) -> None:
        self._context.compute([[0]])
        self._context.forget()

    def _drop_all(self) -> None:
        for job in list(self._jobs.values()):
            self._end(job)
        self._tell(busy=0, waiting=0)

    def _take_in(self, job: Job) -> None:
        job.missing = len(job.inputs)
        self._jobs[job.id] = job
        if not job.missing:
            self._end(job)

    def _cancel(self, request_id: int) -> None:
        found = self._jobs.get(request_id)
        if found is not None:
            self._end(found)

    def _plan(self) -> InputPlan:
        return plan_inputs(
            [job.demand for job in self._jobs.values() if job.pending],
            batch_tokens=self._context.batch_tokens,
            inputs_max=self._context.slots,
            start=self._next_start,
        )

    def _step(self, plan: InputPlan) -> None:
        self._next_start = plan.next_start
        taken = [(job, job.take()) for row in plan.rows for job in [self._jobs[row.key]] for _ in range(row.inputs)]
        # The reports of the last call go out before this one begins: results and plans alternate.
        self._tell(busy=len(taken), waiting=len(self._jobs) - len(plan.rows))
        tokens = sum(job.input_tokens[index] for job, index in taken)
        self._expect_call(tokens)
        started_ns = time.monotonic_ns()
        vectors = self._context.compute([job.inputs[index] for job, index in taken])
        ended_ns = time.monotonic_ns()
        self._threads.look(ended_ns)
        report = self._report
        report.decode_calls += 1
        decode_s = (ended_ns - started_ns) / NS_PER_S
        self._times.see(tokens, decode_s)
        report.decode_s += decode_s
        report.batch_sequences = len(taken)
        report.prompt_tokens += tokens
        for (job, index), values in zip(taken, vectors, strict=True):
            job.first_call_ns = job.first_call_ns or started_ns
            job.last_call_ns = ended_ns
            if np.isfinite(values).all():
                self._answer(job, PooledVector(job.id, index, values))
            else:
                self._refuse(job, index, was_alone=len(taken) == 1)

    def _answer(self, job: Job, vector: PooledVector) -> None:
        if job.id not in self._jobs:
            return  # another input of it failed in this call
        self._report.vectors.append(vector)
        job.missing -= 1
        if not job.missing:
            self._end(job)

    def _refuse(self, job: Job, index: int, *, was_alone: bool) -> None:
        """Refuse a result that is not finite. A masked row multiplies others by zero: one bad input spoils its call."""
        self._context.forget()
        if job.id not in self._jobs:
            return
        if was_alone:
            self._end(job, InternalError(NOT_FINITE))
        else:
            job.again.append(index)

    def _end(self, job: Job, error: PunaError | None = None) -> None:
        del self._jobs[job.id]
        self._report.ends.append(PooledEnd(job.id, error, job.times()))

    def _tell(self, *, busy: int, waiting: int) -> None:
        """Report what happened, if anything did."""
        report = self._report
        report.slots_busy, report.waiting = busy, waiting
        if report.ends or report.vectors or (busy, waiting) != self._reported:
            self._reported = (busy, waiting)
            self._report = PooledReport()
            self._listener.stepped(report)

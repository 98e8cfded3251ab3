"""Answer requests: the one place that all dialects go through; they only translate to it and from it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

from common.clock import Clock
from common.closing import closing
from common.errors import (
    InsufficientMemory,
    InternalError,
    InvalidRequest,
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    PromptTooLong,
    PunaError,
    QueueFull,
    RequestQuarantined,
    RequestTimeout,
    RunnerLost,
)
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.answers.attempts import POISON_TEXT, RETRYABLE, Attempts
from gateway.answers.generation import Generation, Spent, Work
from gateway.answers.markers import MarkerIds
from gateway.answers.model_access import ModelAccess
from gateway.answers.output import plan_output
from gateway.answers.prompt import make_prompt
from gateway.answers.record import RequestRecord
from gateway.answers.vectors import Vectors
from gateway.constraint_checks import ConstraintChecks, SenderTurn
from gateway.core.dispatch.prompt_prefixes import NO_PREFIXES, name_prefixes
from gateway.core.dispatch.replica_choice import ReplicaNeed
from gateway.core.dispatch.resume import AGAIN_S_MIN, Quarantine, RetryBudget, again_after_s, poison_name
from gateway.core.models.routes import RouteInfo
from gateway.core.models.stored_model import with_stored_texts
from gateway.core.prepare.capabilities import check_capabilities, check_usable
from gateway.core.prepare.estimates import answer_tokens
from gateway.core.prepare.options import DEFAULTS, NATIVE_DEFAULTS, AnswerPlan, plan_answer
from gateway.core.prepare.overflow import Overflow, check_hopeless, in_openai_words
from gateway.core.request.answer_format import in_words_of_the_client
from gateway.core.request.answers import AnswerEvent, AnswerRequest, Delta, Dialect, Done, LoadEvent, PromptProgress
from gateway.core.request.model_names import model_not_found, parse_model_name
from gateway.core.request.option_table import load_options
from gateway.keys.visits import cache_salt, claim, context_max, within_context
from gateway.large_texts import beside_loop
from gateway.replicas.dispatch import Dispatcher, SlotRequest
from gateway.replicas.replicas import Connection
from gateway.templates.chat_prompt import ChatPrompts

log = get_logger()

# Time that an answer that has begun waits for another replica while none is being loaded.
RESUME_WAIT_S = 300.0
# And how long while there is no memory for one: that of a runner which has just died is not free at once.
RESUME_SETTLED_S = 30.0
# Events of a runner that the client sees. A tuple: a union of types is made anew for every token.
_DELIVERED = (Delta, PromptProgress, Done)


class Inference:
    """The application layer of the gateway."""

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        prompts: ChatPrompts,
        constraints: ConstraintChecks,
        clock: Clock,
        request_timeout_s: float,
        resumes: bool = True,
    ) -> None:
        self.dispatcher = dispatcher
        self.budget = RetryBudget()
        self.models = ModelAccess(dispatcher=dispatcher, prompts=prompts)
        self.vectors = Vectors(
            dispatcher=dispatcher, models=self.models, clock=clock, request_timeout_s=request_timeout_s
        )
        self._prompts = prompts
        self._constraints = constraints
        self._marker_ids = MarkerIds()
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._resumes = resumes
        self._quarantine = Quarantine(secrets.token_bytes(32))

    async def answer(self, request: AnswerRequest, record: RequestRecord) -> AsyncIterator[AnswerEvent]:
        """Yield the events of one answer. The last one is Done, exactly once; else an error is raised.

        Replicas are tried until one has answered to the end; each continues where the one before was lost.

        Raises:
            PunaError: translate it to the dialect. After a PromptProgress or Delta: as an error inside the stream.
        """
        work: Work | None = None
        async with closing(self._find_work(request, record)) as found:
            async for item in found:
                if isinstance(item, Work):
                    work = item
                else:
                    yield item
        assert work is not None
        generation = self._generation(work, record)
        attempts = generation.attempts
        with metrics.bound(metrics.RUNNING, work.route.model.name).track_inprogress():
            while True:
                slot = self._slot_request(work, generation)
                spent = Spent()
                connection: Connection | None = None
                turn = await self._turn(work, generation)
                try:
                    async with closing(self._connect(work, slot, generation)) as steps:
                        async for step in steps:
                            if isinstance(step, Connection):
                                connection = step
                            else:
                                yield step
                    assert connection is not None
                    with tracing.begin("attempt", _place(connection), kind=tracing.SpanKind.CLIENT):
                        async with closing(generation.run_on(connection, spent)) as events:
                            async for event in events:
                                turn.end()
                                attempts.delivered = attempts.delivered or isinstance(event, _DELIVERED)
                                yield event
                    return
                except PunaError as error:
                    await self._recover(error, connection, generation)
                finally:
                    turn.end()
                    if connection is not None:
                        self.dispatcher.release(slot, connection, used_tokens=spent.tokens)

    async def _turn(self, work: Work, generation: Generation) -> SenderTurn:
        """Wait for the turn of the sender of a constraint that is slow to compile."""
        if work.constraint is None:
            return SenderTurn()
        generation.record.prepared()
        return await generation.within(self._constraints.turn(work.constraint))

    async def _find_work(self, request: AnswerRequest, record: RequestRecord) -> AsyncIterator[LoadEvent | Work]:
        """Yield the progress of finding the model, then the prepared request."""
        self.budget.earn()
        deadline_s = self._clock.now_s() + self._request_timeout_s
        if request.deadline_s is not None:
            deadline_s = min(deadline_s, request.deadline_s)
        route = self.models.meant_route(request.model)
        if route is None:
            record.prepared()
            async with closing(self.models.find(request.model, request.keep_alive_ms)) as steps:
                async for step in steps:
                    if isinstance(step, RouteInfo):
                        route = step
                    else:
                        yield step
            assert route is not None
        record.found(route.model)
        self._check_quarantine(request)
        self.dispatcher.check_room(parse_model_name(route.model.name).key, claim(0))
        yield await self._prepare(request, route, record, deadline_s)

    async def _prepare(
        self, request: AnswerRequest, route: RouteInfo, record: RequestRecord, deadline_s: float
    ) -> Work:
        """Prepare an answer: refuse everything that can be refused without a replica."""
        check_usable(route.model)
        request = with_stored_texts(request, route.model)
        check_capabilities(request, route.model)
        plan = plan_answer(
            dialect=DEFAULTS.get(request.dialect, NATIVE_DEFAULTS),
            model=route.model,
            requested=request.options,
            # Explicit from here on, so that another replica can repeat every draw. 53 bits survive any JSON reader.
            drawn_seed=secrets.randbits(53),
        )
        if (context_tokens := within_context(plan.context_tokens)) != plan.context_tokens:
            plan = replace(plan, context_tokens=context_tokens)
        requested = request.options.get("num_ctx")
        if requested is not None and requested != plan.context_tokens:
            log.warning("option.clamped", option="num_ctx", requested=requested, used=plan.context_tokens)
        try:
            check_hopeless(request, route.model, context_tokens=plan.context_tokens or 0)
        except PromptTooLong as error:
            raise _too_long(error, request, plan, route) from None
        output = plan_output(self._prompts.template_text(route.model), request, parser=route.model.parser)
        if output.wanted is not None:
            self._constraints.check_debt(output.possible_constraints())
        with tracing.begin("render", {"gen_ai.request.model": route.model.name}):
            prompt = await make_prompt(self._prompts, route.model, request)
        if (constraint := output.constraint(prompt.end)) is not None:
            record.prepared()
            try:
                constraint = await self._constraints.check(constraint)
            except InvalidRequest as error:
                raise in_words_of_the_client(error, output.wanted) from error
        salt = cache_salt()
        prefixes = NO_PREFIXES
        if plan.cache_prompt:
            prefixes = await beside_loop(prompt.size_bytes, lambda: name_prefixes(prompt.parts(), salt=salt))
        return Work(
            request=request,
            route=route,
            plan=plan,
            output=output,
            prompt=prompt,
            constraint=constraint,
            deadline_s=deadline_s,
            cache_salt=salt,
            band=claim(0).band,
            prefixes=prefixes,
        )

    def _generation(self, work: Work, record: RequestRecord) -> Generation:
        attempts = Attempts(
            pool=self.dispatcher.pool,
            record=record,
            budget=self.budget,
            may_resume=self._resumes and record.may_resume,
        )
        return Generation(
            work=work,
            record=record,
            attempts=attempts,
            prompts=self._prompts,
            marker_ids=self._marker_ids,
            clock=self._clock,
        )

    def _slot_request(self, work: Work, generation: Generation) -> SlotRequest:
        options = load_options({**work.route.model.own_options, **work.request.options})
        attempts = generation.attempts
        return SlotRequest(
            key=parse_model_name(work.route.model.name).key,
            model_name=work.route.model.name,
            need=ReplicaNeed(
                context_tokens=generation.context_tokens,
                avoided=frozenset(attempts.avoided),
                require_gpu=options.require_gpu,
                num_gpu=options.num_gpu,
                is_suspect=attempts.suspect is not None,
                prefixes=work.prefixes,
            ),
            keep_alive_ms=work.request.keep_alive_ms,
            options=options,
            claim=claim(answer_tokens(work.request)),
            body_bytes=work.prompt.size_bytes,
            was_admitted=attempts.lost + attempts.drained > 0,
            suspicion=attempts.suspect,
        )

    async def _recover(self, error: PunaError, connection: Connection | None, generation: Generation) -> None:
        """Decide after a failed try: return if there may be another one.

        Raises:
            PunaError: what the client gets.
        """
        work = generation.work
        match error:
            case ModelNotFound():
                raise generation.attempts.fail(model_not_found(work.request.model)) from error
            case InvalidRequest():
                raise generation.attempts.fail(in_words_of_the_client(error, work.output.wanted)) from error
            case PromptTooLong():
                raise _too_long(error, work.request, work.plan, work.route) from None
            case InternalError() if connection is not None and await self.dispatcher.pool.is_dying(connection):
                pass
            case _ if not isinstance(error, RETRYABLE):
                raise error
        try:
            generation.attempts.retry_or_raise(error, connection)
        except RequestQuarantined:
            request, tenant = generation.work.request, claim(0).tenant
            metrics.QUARANTINED.inc()
            log.error("request.quarantined", model=generation.work.route.model.name, tenant=tenant)
            self._quarantine.add(tenant, _body(request), self._clock.now_s())
            name = poison_name(_body(request), salt=work.cache_salt)
            self.dispatcher.pool.poisoned.add(name, generation.attempts.crashed)
            raise

    def _check_quarantine(self, request: AnswerRequest) -> None:
        now_s = self._clock.now_s()
        if self._quarantine.is_empty(now_s):
            return
        if self._quarantine.remaining_s(claim(0).tenant, _body(request), now_s) > 0:
            metrics.QUARANTINED.inc()
            raise RequestQuarantined(POISON_TEXT)

    async def _connect(
        self, work: Work, slot: SlotRequest, generation: Generation
    ) -> AsyncIterator[LoadEvent | Connection]:
        """Yield what is waited for, then the replica, which is to be released from then on.

        Raises:
            PunaError: there is none to be had.
        """
        with tracing.begin("queue", {"gen_ai.request.model": slot.model_name}) as queue:
            joined_s = self._clock.now_s()
            # Most requests can take a free slot, without a timer.
            connection = None if self._is_other_model(work) else self.dispatcher.acquire_at_once(slot)
            if connection is None:
                generation.record.prepared()
                async with closing(self._acquire(slot, generation)) as steps:
                    async for step in steps:
                        if isinstance(step, Connection):
                            connection = step
                        else:
                            yield step
            assert connection is not None
            yield connection
            queue.set(_place(connection))
            waited_s, resumes = self._clock.now_s() - joined_s, bool(generation.attempts.cause)
            generation.record.slot_found(connection.info, waited_s=waited_s, resumes=resumes)

    async def _acquire(self, slot: SlotRequest, generation: Generation) -> AsyncIterator[LoadEvent | Connection]:
        """Wait for a slot. A begun answer waits for one as it waits for a load.

        Raises:
            PunaError: there is none to be had.
        """
        work, attempts = generation.work, generation.attempts
        joined_s = self._clock.now_s()
        logged = ""
        while True:
            route = self.dispatcher.routes.by_key(slot.key)
            try:
                async with closing(self.dispatcher.acquire(slot)) as steps:
                    while not isinstance(step := await generation.within(anext(steps)), Connection):
                        yield step
                break
            except (ModelUnavailable, ModelLoading, QueueFull, InsufficientMemory) as error:
                longest_s = RESUME_SETTLED_S if isinstance(error, InsufficientMemory) else RESUME_WAIT_S
                waited_s = self._clock.now_s() - joined_s
                if not attempts.cause or waited_s > longest_s:
                    raise attempts.fail(error) from error
                if error.message != logged:
                    logged = error.message
                    log.info("answer.waits", model=work.route.model.name, reason=error.reason, text=logged)
                pause_s = again_after_s(waited_s, error.retry_after_s)
                await generation.within(self._other_route(slot.key, route, pause_s))
            except PunaError as error:
                if isinstance(error, RunnerLost) and attempts.asks_again():
                    continue
                raise (error if isinstance(error, RequestTimeout) else attempts.fail(error)) from error
        if self._is_other_model(work):
            self.dispatcher.release(slot, step)
            raise attempts.fail(RunnerLost("the model's file has changed"))
        yield step

    async def _other_route(self, key: str, known: RouteInfo | None, longest_s: float) -> None:
        """Return after so long, or a moment from now if by then or later the model's route is not the known one."""
        await asyncio.sleep(AGAIN_S_MIN)
        routes = self.dispatcher.routes
        await routes.until(lambda: routes.by_key(key) != known, longest_s - AGAIN_S_MIN)

    def _is_other_model(self, work: Work) -> bool:
        """Return True if the name means another file since the request began."""
        route = self.dispatcher.routes.by_key(parse_model_name(work.route.model.name).key)
        return route is not None and route.model.digest != work.route.model.digest


def _place(connection: Connection) -> dict[str, tracing.Value]:
    return {"puna.placement": connection.info.placement_id, "puna.node": connection.info.node_id}


def _too_long(error: PromptTooLong, request: AnswerRequest, plan: AnswerPlan, route: RouteInfo) -> PromptTooLong:
    """Return the error in the words of the dialect."""
    if request.dialect is not Dialect.OPENAI:
        return error
    wanted = Overflow(
        prompt=request.prompt,
        completion_tokens=plan.max_tokens or 0,
        context_tokens_max=context_max(route.model.context_tokens),
    )
    return in_openai_words(error, wanted)


def _body(request: AnswerRequest) -> str:
    """Return the question as text, equal for equal questions. The deadline belongs to the connection."""
    return repr(replace(request, deadline_s=None))

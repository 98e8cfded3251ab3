"""Answer requests: the one place that all dialects go through; they only translate to it and from it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from common.clock import NS_PER_S, Clock
from common.errors import (
    ModelLoading,
    ModelNotFound,
    ModelUnavailable,
    PlacementMismatch,
    PunaError,
    QueueFull,
    RequestCanceled,
    RequestTimeout,
    RunnerLost,
    ShuttingDown,
)
from common.logs import get_logger
from gateway import converters, metrics
from gateway.core.answers import AnswerEvent, AnswerRequest, Delta, Done, LoadEvent, PromptProgress
from gateway.core.capabilities import check_capabilities, check_usable
from gateway.core.model_names import model_not_found, parse_model_name
from gateway.core.options import AnswerPlan, plan_answer
from gateway.core.replica_choice import Need
from gateway.core.routes import RouteInfo
from gateway.dispatch import Dispatcher, SlotRequest
from gateway.model_access import ModelAccess
from gateway.output import output_parser
from gateway.prompt import Prompt, fit_prompt, make_prompt
from gateway.record import RequestRecord
from gateway.replicas import Connection
from gateway.streams import closing
from gateway.templates.chat_prompt import ChatPrompts

log = get_logger()

Item = TypeVar("Item")

LOST_TEXT = "model runner has unexpectedly stopped"
# Replicas tried for one request before its first event. More would let one poisonous request empty the cluster.
LOST_MAX = 3
# Refusals of full or not quite ready replicas for one request; each is followed by a wait for a free slot.
REFUSED_MAX = 16
_GONE = (ModelUnavailable, RunnerLost, RequestCanceled, ShuttingDown, PlacementMismatch)
_NOT_NOW = (QueueFull, ModelLoading)


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """Where one request was tried already. Resuming a stream elsewhere will count here, too."""

    lost: int = 0
    refused: int = 0
    avoided: set[str] = field(default_factory=set)
    delivered: bool = False  # the client has seen an event of a runner


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One request, ready to run on any replica."""

    request: AnswerRequest
    route: RouteInfo
    plan: AnswerPlan
    prompt: Prompt
    seed: int
    deadline_s: float


class Inference:
    """The application layer of the gateway."""

    def __init__(self, *, dispatcher: Dispatcher, prompts: ChatPrompts, clock: Clock, request_timeout_s: float) -> None:
        self.dispatcher = dispatcher
        self.models = ModelAccess(dispatcher=dispatcher, prompts=prompts)
        self._prompts = prompts
        self._clock = clock
        self._request_timeout_s = request_timeout_s

    async def answer(self, request: AnswerRequest, record: RequestRecord) -> AsyncIterator[AnswerEvent]:
        """The events of one answer. The last one is Done, exactly once; else an error is raised.

        Raises:
            PunaError: translate it to the dialect. After a PromptProgress or Delta: as an error inside the stream.
        """
        deadline_s = self._clock.now_s() + self._request_timeout_s
        if request.deadline_s is not None:
            deadline_s = min(deadline_s, request.deadline_s)
        route: RouteInfo | None = None
        async with closing(self.models.find(request.model, request.keep_alive_ms)) as steps:
            async for step in steps:
                if isinstance(step, RouteInfo):
                    route = step
                else:
                    yield step
        assert route is not None
        record.model = route.model.name
        work = await self._prepare(request, route, deadline_s)
        metrics.RUNNING.inc()
        try:
            async with closing(self._run(work, record)) as events:
                async for event in events:
                    yield event
        finally:
            metrics.RUNNING.dec()

    async def _prepare(self, request: AnswerRequest, route: RouteInfo, deadline_s: float) -> _Work:
        """Everything that can be refused without a replica is refused here."""
        check_usable(route.model)
        check_capabilities(request, route.model)
        plan = plan_answer(dialect=request.dialect_defaults, model=route.model, requested=request.options)
        asked = request.options.get("num_ctx")
        if plan.context_tokens is not None and asked != plan.context_tokens:
            log.warning("option.clamped", option="num_ctx", asked=asked, used=plan.context_tokens)
        return _Work(
            request=request,
            route=route,
            plan=plan,
            prompt=await make_prompt(self._prompts, route.model, request),
            # Explicit from here on, so that another replica can repeat every draw. 53 bits survive any JSON reader.
            seed=secrets.randbits(53) if plan.seed == -1 else plan.seed % 2**64,
            deadline_s=deadline_s,
        )

    async def _run(self, work: _Work, record: RequestRecord) -> AsyncIterator[AnswerEvent]:
        """Try replicas until one has answered; after the first delivered event only that one counts."""
        attempts = _Attempts()
        while True:
            slot = SlotRequest(
                key=parse_model_name(work.route.model.name).key,
                model_name=work.route.model.name,
                need=Need(context_tokens=work.plan.context_tokens, avoided=frozenset(attempts.avoided)),
                keep_alive_ms=work.request.keep_alive_ms,
            )
            connection: Connection | None = None
            try:
                async with closing(self._acquire(slot, work, record)) as steps:
                    async for step in steps:
                        if isinstance(step, Connection):
                            connection = step
                        else:
                            yield step
                assert connection is not None
                async with closing(self._generate(work, connection, record)) as events:
                    async for event in events:
                        attempts.delivered = attempts.delivered or isinstance(event, PromptProgress | Delta | Done)
                        yield event
                return
            except ModelNotFound as error:
                raise model_not_found(work.request.model) from error
            except (*_GONE, *_NOT_NOW) as error:
                if connection is None:
                    raise
                self._judge(error, connection, attempts)
                record.retries += 1
                metrics.RETRIES.labels(error.reason).inc()
            finally:
                if connection is not None:
                    self.dispatcher.release(slot, connection)

    def _judge(self, error: PunaError, connection: Connection, attempts: _Attempts) -> None:
        """After a failed call: return if the request may try again, else raise what the client gets."""
        key = connection.info.key
        if isinstance(error, _NOT_NOW):
            attempts.refused += 1
            self.dispatcher.pool.mark_full(connection)
            if attempts.delivered or attempts.refused >= REFUSED_MAX:
                raise error
            return
        log.warning("replica.lost", replica=key, reason=error.reason, text=error.message, delivered=attempts.delivered)
        if not isinstance(error, ShuttingDown | PlacementMismatch):
            self.dispatcher.pool.mark_lost(connection)
        attempts.lost += 1
        attempts.avoided.add(key)
        if attempts.delivered or attempts.lost >= LOST_MAX:
            raise RunnerLost(LOST_TEXT, retry_after_s=1.0) from error

    async def _acquire(
        self, slot: SlotRequest, work: _Work, record: RequestRecord
    ) -> AsyncIterator[LoadEvent | Connection]:
        joined_s = self._clock.now_s()
        async with closing(self.dispatcher.acquire(slot)) as steps:
            while True:
                step = await self._within(anext(steps), work.deadline_s)
                if isinstance(step, Connection):
                    waited_s = self._clock.now_s() - joined_s
                    record.queue_s = (record.queue_s or 0.0) + waited_s
                    record.load_s = self._clock.now_s() - record.started_s
                    record.replica, record.node = step.info.placement_id, step.info.node_id
                    metrics.QUEUE_S.labels(work.route.model.name).observe(waited_s)
                    yield step
                    return
                yield step

    async def _generate(self, work: _Work, connection: Connection, record: RequestRecord) -> AsyncIterator[AnswerEvent]:
        """One call of one replica."""
        prompt = await self._within(self._fit(work, connection), work.deadline_s)
        message = converters.generate_request(
            request=work.request,
            plan=work.plan,
            prompt=list(prompt.segments),
            seed=work.seed,
            stop=(*work.plan.stop, *prompt.stop),
            replica=connection.info,
        )
        parser = output_parser(work.route.model, work.request)
        generated: list[int] = []
        calls = connection.runner.generate(message, timeout_s=max(work.deadline_s - self._clock.now_s(), 0.0))
        async with closing(calls) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "prompt":
                        yield converters.prompt_progress(event.prompt)
                    case "tokens":
                        record.token_arrived(len(event.tokens.tokens))
                        if work.request.wants_context:
                            generated.extend(token.id for token in event.tokens.tokens)
                        for delta in parser.feed(converters.delta(event.tokens)):
                            yield delta
                    case "final":
                        for delta in parser.finish():
                            yield delta
                        context = await self._context(work, connection, prompt, generated)
                        done = converters.done(
                            event.final,
                            seed=work.seed,
                            replica=connection.info,
                            total_duration_ns=round((self._clock.now_s() - record.started_s) * NS_PER_S),
                            load_duration_ns=round((record.load_s or 0.0) * NS_PER_S),
                        )
                        record.dones.append(done)
                        yield replace(done, context_token_ids=context)
                        return
        raise RunnerLost(LOST_TEXT)

    async def _fit(self, work: _Work, connection: Connection) -> Prompt:
        slot_tokens = connection.info.context_tokens
        limit = min(work.plan.context_tokens or slot_tokens, slot_tokens)
        return await fit_prompt(
            work.prompt,
            prompts=self._prompts,
            model=work.route.model,
            request=work.request,
            runner=connection.runner,
            context_tokens=limit,
        )

    async def _context(
        self, work: _Work, connection: Connection, prompt: Prompt, generated: list[int]
    ) -> tuple[int, ...]:
        """Ids of prompt and answer, for clients that send them back as /api/generate's `context`."""
        if not work.request.wants_context:
            return ()
        answer = await connection.runner.tokenize(converters.tokenize_request(prompt.segments))
        return (*answer.ids, *generated)

    async def _within(self, step: Awaitable[Item], deadline_s: float) -> Item:
        try:
            async with asyncio.timeout(max(deadline_s - self._clock.now_s(), 0.0)):
                return await step
        except TimeoutError as error:
            raise RequestTimeout("request timed out") from error

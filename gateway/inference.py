"""Answer requests: the one place that all dialects go through; they only translate to it and from it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from common.clock import NS_PER_S, Clock
from common.errors import InvalidRequest, ModelNotFound, RequestTimeout, RunnerLost
from common.logs import get_logger
from gateway import converters, metrics
from gateway.attempts import LOST_TEXT, RETRYABLE, Attempts
from gateway.core.answer_format import in_words_of_the_client
from gateway.core.answers import AnswerEvent, AnswerRequest, Delta, Done, EndReason, LoadEvent, PromptProgress
from gateway.core.capabilities import check_capabilities, check_usable
from gateway.core.estimates import answer_tokens
from gateway.core.load_options import load_options
from gateway.core.model_names import model_not_found, parse_model_name
from gateway.core.options import AnswerPlan, plan_answer
from gateway.core.replica_choice import Need
from gateway.core.routes import RouteInfo
from gateway.dispatch import Dispatcher, SlotRequest
from gateway.markers import MarkerIds
from gateway.model_access import ModelAccess
from gateway.output import OutputParser, OutputPlan, plan_output
from gateway.prompt import Prompt, fit_prompt, make_prompt
from gateway.record import RequestRecord
from gateway.replicas import Connection
from gateway.streams import closing
from gateway.templates.chat_prompt import ChatPrompts
from gateway.vectors import Vectors
from gateway.visits import claim

log = get_logger()

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One request, ready to run on any replica."""

    request: AnswerRequest
    route: RouteInfo
    plan: AnswerPlan
    output: OutputPlan
    prompt: Prompt
    seed: int
    deadline_s: float


@dataclass(slots=True)
class _Spent:
    """What one try has used of the tenant's share."""

    prompt: int = 0
    answer: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


class Inference:
    """The application layer of the gateway."""

    def __init__(self, *, dispatcher: Dispatcher, prompts: ChatPrompts, clock: Clock, request_timeout_s: float) -> None:
        self.dispatcher = dispatcher
        self.models = ModelAccess(dispatcher=dispatcher, prompts=prompts)
        self.vectors = Vectors(
            dispatcher=dispatcher, models=self.models, clock=clock, request_timeout_s=request_timeout_s
        )
        self._prompts = prompts
        self._marker_ids = MarkerIds()
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
            output=plan_output(route.model.chat_template, request),
            prompt=await make_prompt(self._prompts, route.model, request),
            # Explicit from here on, so that another replica can repeat every draw. 53 bits survive any JSON reader.
            seed=secrets.randbits(53) if plan.seed == -1 else plan.seed % 2**64,
            deadline_s=deadline_s,
        )

    async def _run(self, work: _Work, record: RequestRecord) -> AsyncIterator[AnswerEvent]:
        """Try replicas until one has answered; after the first delivered event only that one counts."""
        attempts = Attempts(pool=self.dispatcher.pool, record=record)
        options = load_options(work.request.options)
        while True:
            slot = SlotRequest(
                key=parse_model_name(work.route.model.name).key,
                model_name=work.route.model.name,
                need=Need(
                    context_tokens=work.plan.context_tokens,
                    avoided=frozenset(attempts.avoided),
                    require_gpu=options.require_gpu,
                    num_gpu=options.num_gpu,
                ),
                keep_alive_ms=work.request.keep_alive_ms,
                options=options,
                claim=claim(answer_tokens(work.request)),
            )
            spent = _Spent()
            connection: Connection | None = None
            try:
                async with closing(self._acquire(slot, work, record)) as steps:
                    async for step in steps:
                        if isinstance(step, Connection):
                            connection = step
                        else:
                            yield step
                assert connection is not None
                async with closing(self._generate(work, connection, record, spent)) as events:
                    async for event in events:
                        attempts.delivered = attempts.delivered or isinstance(event, PromptProgress | Delta | Done)
                        yield event
                return
            except ModelNotFound as error:
                raise model_not_found(work.request.model) from error
            except InvalidRequest as error:
                raise in_words_of_the_client(error, work.output.wanted) from error
            except RETRYABLE as error:
                attempts.judge(error, connection)
            finally:
                if connection is not None:
                    self.dispatcher.release(slot, connection, used_tokens=spent.tokens)

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

    async def _generate(
        self, work: _Work, connection: Connection, record: RequestRecord, spent: _Spent
    ) -> AsyncIterator[AnswerEvent]:
        """One call of one replica."""
        prompt = await self._within(self._fit(work, connection), work.deadline_s)
        visible = self._marker_ids.of(work.route.model, work.output.markers, connection.runner)
        message = converters.generate_request(
            request=work.request,
            plan=work.plan,
            prompt=list(prompt.segments),
            seed=work.seed,
            stop=(*work.plan.stop, *prompt.stop, *work.output.stop),
            visible_token_ids=await self._within(visible, work.deadline_s),
            replica=connection.info,
            constraint=work.output.constraint(prompt.end),
        )
        parser = work.output.parser(prompt.end)
        generated: list[int] = []
        calls = connection.runner.generate(message, timeout_s=max(work.deadline_s - self._clock.now_s(), 0.0))
        async with closing(calls) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "prompt":
                        progress = converters.prompt_progress(event.prompt)
                        record.prompt_tokens = max(record.prompt_tokens, progress.total_tokens)
                        spent.prompt = progress.total_tokens
                        yield progress
                    case "tokens":
                        record.token_arrived(len(event.tokens.tokens))
                        spent.answer += len(event.tokens.tokens)
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
                        reason = _end_reason(done, parser, work.output)
                        usage = replace(done.usage, reasoning_tokens=parser.reasoning_tokens)
                        yield replace(done, reason=reason, usage=usage, context_token_ids=context)
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


def _end_reason(done: Done, parser: OutputParser, output: OutputPlan) -> EndReason:
    """Tool calls end an answer as far as clients are concerned, whether the model or our stop string ended it."""
    if not parser.called or done.reason is EndReason.LENGTH:
        return done.reason
    is_ours = done.reason is EndReason.END_TOKEN or done.stop_string in output.stop
    return EndReason.TOOL_CALLS if is_ours else done.reason

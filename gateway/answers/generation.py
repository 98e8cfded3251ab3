"""One answer over as many replicas as it takes: what must outlive a replica, and one call of one replica."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from common.clock import NS_PER_S, Clock
from common.errors import RequestTimeout, RunnerLost
from common.spec.bands import Band
from gateway.answers.attempts import LOST_TEXT, Attempts
from gateway.answers.markers import MarkerIds
from gateway.answers.output import OutputParser, OutputPlan
from gateway.answers.prompt import fit_prompt, surely_fits, tokenize
from gateway.answers.record import RequestRecord
from gateway.converters import generation as converters
from gateway.core.dispatch.prompt_prefixes import NO_PREFIXES, PromptPrefixes
from gateway.core.models.routes import RouteInfo
from gateway.core.prepare.options import AnswerPlan
from gateway.core.prepare.prompt import Prompt
from gateway.core.request.answers import (
    AnswerEvent,
    AnswerRequest,
    Delta,
    Dialect,
    Done,
    FinishReason,
    PromptProgress,
)
from gateway.core.request.constraint import Constraint
from gateway.large_texts import beside_loop
from gateway.replicas.replicas import Connection
from gateway.replicas.runner_calls import RunnerCall
from gateway.templates.chat_prompt import ChatPrompts
from protos import runner_pb2

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request, ready to run on any replica."""

    request: AnswerRequest
    route: RouteInfo
    plan: AnswerPlan
    output: OutputPlan
    prompt: Prompt
    constraint: Constraint | None  # as it was checked
    deadline_s: float
    cache_salt: str = ""  # what is held of its prompt serves no request of another one
    band: Band = Band.NORMAL
    prefixes: PromptPrefixes = NO_PREFIXES  # of the prompt; none: nothing that is held shall be used


@dataclass(slots=True)
class Spent:
    """Part of the tenant's share that one try has used."""

    prompt: int = 0
    answer: int = 0

    @property
    def tokens(self) -> int:
        """Together."""
        return self.prompt + self.answer


@dataclass(slots=True)
class Begun:
    """An answer from its first token on.

    The prompt as it was fitted, and the context that decides when it is shifted, are those of the first replica, so
    that every further one computes the same; the parser goes on where it is.
    """

    prompt: Prompt
    parser: OutputParser
    context_tokens: int
    token_ids: list[int] = field(default_factory=list)  # all that runners gave, in order
    generated_s: float = 0.0  # at replicas that were lost


@dataclass(slots=True, kw_only=True)
class Generation:
    """Runs the calls of one request."""

    work: Work
    record: RequestRecord
    attempts: Attempts
    prompts: ChatPrompts
    marker_ids: MarkerIds
    clock: Clock
    begun: Begun | None = None

    @property
    def context_tokens(self) -> int | None:
        """Return the context that a replica must have for the request."""
        return self.begun.context_tokens if self.begun else self.work.plan.context_tokens

    async def run_on(self, connection: Connection, spent: Spent) -> AsyncIterator[AnswerEvent]:
        """Make one call to one replica, from the answer's current place; the last event is Done if it succeeds."""
        prompt = self.begun.prompt if self.begun else await self._fitted(connection)
        message = await self._message(prompt, connection)
        timeout_s = max(self.work.deadline_s - self.clock.now_s(), 0.0)
        started_s = self.clock.now_s()
        events = connection.runner.generate(message, timeout_s=timeout_s, on_sent=self.record.prepared)
        try:
            async with (
                self.attempts.probation(connection, timeout_s) as probation,
                RunnerCall(events, connection.streams) as call,
            ):
                async for event in call:
                    kind = event.WhichOneof("event")
                    call.is_paused = kind == "paused"
                    if (progress := self._progress(event, spent)) is not None:
                        yield progress
                    match kind:
                        case "tokens":
                            for delta in self._take(event.tokens, prompt, connection, spent):
                                yield delta
                            if self.attempts.suspicion.is_past_probation:
                                await probation.aclose()
                        case "final":
                            begun = self.begun or self._begin(prompt, connection)
                            self.attempts.continued(connection)
                            for delta in begun.parser.finish():
                                yield delta
                            yield await self._done(event.final, begun, connection)
                            return
        finally:
            if spent.answer and self.begun is not None:
                self.begun.generated_s += self.clock.now_s() - started_s
        raise RunnerLost(LOST_TEXT)

    def _progress(self, event: runner_pb2.GenerateEvent, spent: Spent) -> PromptProgress | None:
        """Return the progress of the prompt for the client, if any.

        That of a whole prompt comes with the first tokens; only Anthropic's answers begin with the counts.
        """
        wire = event.tokens if event.HasField("tokens") else event
        if not wire.HasField("prompt"):
            return None
        progress = converters.PROMPT_PROGRESS.from_proto(wire.prompt)
        self.record.prompt_tokens = max(self.record.prompt_tokens, progress.total_tokens)
        spent.prompt = progress.total_tokens
        is_shown = wire is event or self.work.request.dialect is Dialect.ANTHROPIC
        return progress if is_shown and self.begun is None else None

    async def _message(self, prompt: Prompt, connection: Connection) -> runner_pb2.GenerateRequest:
        work = self.work
        model, markers = work.route.model, work.output.markers
        visible = self.marker_ids.known(model, markers)
        if visible is None:
            visible = await self.within(self.marker_ids.of(model, markers, connection.runner))
        message = partial(
            converters.generate_request,
            request=work.request,
            plan=work.plan,
            prompt=prompt,
            stop=(*work.plan.stop, *prompt.stop, *work.output.stop),
            visible_token_ids=visible,
            replica=connection.info,
            constraint=(work.constraint if prompt.end == work.prompt.end else work.output.constraint(prompt.end)),
            reasoning=work.output.reasoning(prompt.end),
            context_tokens=self.context_tokens,
            delivered=self.begun.token_ids if self.begun else (),
            cache_salt=work.cache_salt,
            band=work.band,
            state_node_id=self.attempts.state_node_id(connection, work.prefixes),
        )
        return await beside_loop(prompt.size_bytes, message)

    def _take(self, chunk: runner_pb2.TokenChunk, prompt: Prompt, connection: Connection, spent: Spent) -> list[Delta]:
        """Parse new tokens into certain deltas. Once returned they count as delivered and survive a failover."""
        begun = self.begun or self._begin(prompt, connection)
        delta = converters.delta(chunk)
        begun.token_ids.extend([token.id for token in delta.tokens])
        count = len(delta.tokens)
        self.record.token_arrived(count)
        spent.answer += count
        self.attempts.answer_tokens += count
        self.attempts.continued(connection)
        return begun.parser.feed(delta)

    def _begin(self, prompt: Prompt, connection: Connection) -> Begun:
        self.begun = Begun(
            prompt=prompt,
            parser=self.work.output.parser(prompt.end),
            context_tokens=self._limit(connection),
        )
        return self.begun

    async def _done(self, final: runner_pb2.Final, begun: Begun, connection: Connection) -> Done:
        done = converters.done(
            final,
            seed=self.work.plan.sampling.seed,
            total_duration_ns=round((self.clock.now_s() - self.record.started_s) * NS_PER_S),
            load_duration_ns=round((self.record.load_s or 0.0) * NS_PER_S),
        )
        usage = done.usage
        if self.attempts.resumes:
            # A runner counts what it found of the answer, too, and knows nothing of the time at replicas before it.
            usage = replace(
                usage,
                cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
                generate_duration_ns=usage.generate_duration_ns + round(begun.generated_s * NS_PER_S),
            )
            done = replace(done, usage=usage, resumes=self.attempts.resumes)
        self.record.dones.append(done)
        return replace(
            done,
            reason=_end_reason(done, begun.parser, self.work.output),
            usage=replace(usage, reasoning_tokens=begun.parser.reasoning_tokens),
            context_token_ids=await self._context(connection, begun),
        )

    def _limit(self, connection: Connection) -> int:
        slot_tokens = connection.info.context_tokens
        return min(self.work.plan.context_tokens or slot_tokens, slot_tokens)

    async def _fitted(self, connection: Connection) -> Prompt:
        context_tokens = self._limit(connection)
        if surely_fits(self.work.prompt, context_tokens):
            return self.work.prompt
        return await self.within(
            fit_prompt(
                self.work.prompt,
                prompts=self.prompts,
                model=self.work.route.model,
                request=self.work.request,
                runner=connection.runner,
                context_tokens=context_tokens,
            )
        )

    async def _context(self, connection: Connection, begun: Begun) -> tuple[int, ...]:
        """Return ids of prompt and answer, for clients that send them back as /api/generate's `context`."""
        if not self.work.request.wants_context:
            return ()
        answer = await tokenize(connection.runner, begun.prompt)
        return (*answer.ids, *begun.token_ids)

    async def within(self, step: Awaitable[Item]) -> Item:
        """Run a step of the request within its deadline.

        Raises:
            RequestTimeout: it passed.
        """
        try:
            async with asyncio.timeout(max(self.work.deadline_s - self.clock.now_s(), 0.0)):
                return await step
        except TimeoutError as error:
            raise RequestTimeout("request timed out") from error


def _end_reason(done: Done, parser: OutputParser, output: OutputPlan) -> FinishReason:
    """Translate a runner's reason. Tool calls end an answer for clients, even if our stop string ended it."""
    if not parser.called or done.reason.is_cut:
        return done.reason
    is_ours = done.reason is FinishReason.END_TOKEN or done.stop_string in output.stop
    return FinishReason.TOOL_CALLS if is_ours else done.reason

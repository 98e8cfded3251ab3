"""Services that every endpoint uses, and the code that runs an answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from common.closing import closing
from common.effective_settings import EffectiveSetting
from common.errors import InsufficientMemory, InternalError, ModelUnavailable, PunaError
from common.telemetry.logs import get_logger
from gateway.answers.choices import ChoiceEvent, merge_choices
from gateway.answers.feed import Feed
from gateway.answers.inference import Inference
from gateway.answers.live import LiveRequests
from gateway.answers.model_access import ModelAccess
from gateway.answers.record import RequestRecord
from gateway.core.keys.keys import Scope
from gateway.core.prepare.estimates import answer_tokens, question_tokens
from gateway.core.prepare.vectors import Embedded, EmbedQuestion, Ranked, RerankQuestion
from gateway.core.request.answers import AnswerEvent, AnswerRequest, Delta, Done, LoadUpdate, Queued
from gateway.core.request.durations import FOREVER_MS, parse_keep_alive_ms
from gateway.core.request.option_table import OptionValue, check_options
from gateway.http.endpoint.exchange import Exchange
from gateway.keys.made_keys import MadeKeys
from gateway.keys.visits import current_key, reserve
from gateway.models.model_store import ModelStores
from gateway.models.scrape_targets import NO_ADDRESSES, OwnAddresses
from runner.host.client import HostClient
from scheduler.client import SchedulerClient

log = get_logger()

Item = TypeVar("Item")

# While draining only: how soon the end of the last answer is noticed.
_DRAIN_POLL_S = 0.05
_WAITING = (Queued, LoadUpdate)


@dataclass(slots=True, kw_only=True)
class Service:
    """The gateway's parts as the dialects use them."""

    inference: Inference
    scheduler: SchedulerClient
    stores: ModelStores
    version: str
    stream_commit_s: float = 15.0
    keep_alive_max_ms: int = FOREVER_MS  # for callers who may not manage models
    blob_bytes_max: int = 2**40
    hosts: HostClient = field(default_factory=lambda: HostClient("node"))  # for faults and saved states
    salt_of: Callable[[str], str] = lambda _: ""  # of a tenant's prompts; empty: all share them
    is_production: bool = False  # no faults for exercises
    trusts_strangers: bool = True  # where there are no keys, callers may manage models
    made_keys: MadeKeys | None = None  # where keys can be made: with a file of keys and a Redis
    draining: bool = False
    addresses: OwnAddresses = NO_ADDRESSES
    settings: tuple[EffectiveSetting, ...] = ()  # of this process, without secrets
    feeds: set[Feed[Any]] = field(default_factory=set)
    live: LiveRequests = field(default_factory=LiveRequests)

    def feed(self, request: AnswerRequest, record: RequestRecord) -> Feed[AnswerEvent]:
        """Start an answer; use as a context. It may begin with a RateLimited: the key has not so many tokens left."""
        answer = self.inference.answer(request, record)
        return Feed(self._guarded(answer, record, reserved_tokens=answer_tokens(request)), self.feeds)

    def choices_feed(self, requests: list[AnswerRequest], record: RequestRecord) -> Feed[ChoiceEvent]:
        """Start the answers of several choices; use as a context. May begin as `feed`."""
        tokens = sum(answer_tokens(request) for request in requests)
        answers = merge_choices([self.inference.answer(request, record) for request in requests])
        return Feed(self._guarded(answers, record, reserved_tokens=tokens), self.feeds)

    def work_feed(self, events: AsyncIterator[Item], record: RequestRecord) -> Feed[Item]:
        """Start other work that reports progress; use as a context."""
        return Feed(self._guarded(events, record), self.feeds)

    async def load(self, model: str, keep_alive_ms: int | None, record: RequestRecord) -> None:
        """Load a model, and return once a replica runs.

        Raises:
            PunaError: it cannot be loaded, or the gateway is shutting down.
        """
        load = self.inference.models.load(model, keep_alive_ms=keep_alive_ms, record=record)
        async with self.work_feed(load, record) as feed:
            async for _ in feed:
                pass

    async def embed(self, question: EmbedQuestion, record: RequestRecord) -> Embedded:
        """Return a vector for each input.

        Raises:
            PunaError: it failed, or the gateway is shutting down.
        """
        await reserve(question_tokens(question))
        return await self.whole(self.inference.vectors.embed(question, record), record)

    async def rerank(self, question: RerankQuestion, record: RequestRecord) -> Ranked:
        """Return a score for each document.

        Raises:
            PunaError: as `embed`.
        """
        await reserve(question_tokens(question))
        return await self.whole(self.inference.vectors.rerank(question, record), record)

    async def whole(self, answer: Awaitable[Item], record: RequestRecord) -> Item:
        """Run an answer without events as a feed, so that a shutdown waits for it, and can end it."""

        async def events() -> AsyncIterator[Item]:
            yield await answer

        feed: Feed[Item] = Feed(self._guarded(events(), record), self.feeds)
        async with feed:
            return await anext(feed)

    async def all_answered(self) -> None:
        """Return once no answer is in progress."""
        while self.feeds:  # noqa: ASYNC110  # at most twice in a process's life; an event would cost every answer
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _guarded(
        self, events: AsyncIterator[Any], record: RequestRecord, *, reserved_tokens: int | None = None
    ) -> AsyncIterator[Any]:
        """Turn bugs into an InternalError, so that streams that have begun end in an error object, too.

        Nothing begins without the tokens that it is to reserve. What a load waits for, and what it gave up for, names
        no model that is not for the caller.
        """
        try:
            with self.live.request(record) as live:
                async with closing(events):
                    if reserved_tokens is not None:
                        await reserve(reserved_tokens)
                    async for event in events:
                        if isinstance(event.event if isinstance(event, ChoiceEvent) else event, _WAITING):
                            self.live.note(live, event)
                        yield self._shown(event) if isinstance(event, _WAITING) else event
        except (ModelUnavailable, InsufficientMemory) as error:
            if (text := self.inference.models.shown(error.message)) == error.message:
                raise
            raise type(error)(text, param=error.param, retry_after_s=error.retry_after_s) from error
        except PunaError:
            raise
        except Exception as error:
            log.exception("answer.bug")
            raise InternalError("internal error") from error

    def _shown(self, progress: Queued | LoadUpdate) -> Queued | LoadUpdate:
        """Hide names that this caller may not see; others wait for the same load."""
        text = self.inference.models.shown(progress.waits_for)
        return progress if text == progress.waits_for else replace(progress, waits_for=text)

    def keep_alive_ms(self, value: object) -> int | None:
        """Parse the keep_alive of a request body and limit it to the maximum of the caller.

        Raises:
            InvalidRequest: no number and no duration.
        """
        return self.clamped_keep_alive_ms(parse_keep_alive_ms(value))

    def clamped_keep_alive_ms(self, requested_ms: int | None) -> int | None:
        """Limit a keep_alive to the maximum of the caller."""
        limit_ms = self.keep_alive_max_ms
        if requested_ms is None or limit_ms < 0 or self.may_manage_models():
            return requested_ms
        return limit_ms if requested_ms == FOREVER_MS else min(requested_ms, limit_ms)

    def may_manage_models(self) -> bool:
        """Return True if the caller may set the load options, keep_alive and template of replicas."""
        key = current_key()
        return self.trusts_strangers if key is None else Scope.MODELS_WRITE in key.scopes


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Base of the endpoints of one part of the API."""

    service: Service

    @property
    def models(self) -> ModelAccess:
        """The cluster's models, as the caller may see them."""
        return self.service.inference.models

    @property
    def scheduler(self) -> SchedulerClient:
        """The client of the scheduler."""
        return self.service.scheduler


def checked_options(
    service: Service, exchange: Exchange, options: Mapping[str, object], own: Mapping[str, object] | None = None
) -> Mapping[str, OptionValue]:
    """Check the options of a request body; those without effect are named in the log and the x-puna-ignored header.

    `own` are fields of the dialect by the names of the options: those that are set override `options`.

    Raises:
        InvalidRequest: wrong type or out of range.
    """
    wanted = {**options, **{name: value for name, value in (own or {}).items() if value is not None}}
    checked = check_options(wanted, may_set_load=service.may_manage_models())
    for name in checked.unknown:
        log.warning("option.ignored", option=name[:64])
    exchange.ignore(*checked.ignored)
    return checked.values


async def whole_answer(feed: Feed[AnswerEvent]) -> tuple[Delta, Done]:
    """Read an answer to its end, as one delta.

    Raises:
        PunaError: the answer failed.
    """
    deltas: list[Delta] = []
    done: Done | None = None
    async for event in feed:
        if isinstance(event, Delta):
            deltas.append(event)
        elif isinstance(event, Done):
            done = event
    assert done is not None  # answer() ends in Done or raises
    return Delta.joined(deltas), done

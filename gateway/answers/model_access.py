"""Models by the names that clients write: find, load, render, tokenize."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TypeVar

from common.closing import closing
from common.errors import InvalidRequest, ModelNotFound, ModelUnavailable, TemplateFailed
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from gateway.answers.prompt import make_prompt, tokenize
from gateway.answers.record import RequestRecord
from gateway.core.dispatch.replica_choice import ReplicaNeed
from gateway.core.keys.hidden_names import without_hidden
from gateway.core.models.aliases import Alias, ListedModel, alias_leads_nowhere, listed, resolved
from gateway.core.models.chat_template import TemplateChoice
from gateway.core.models.routes import ModelInfo, RouteInfo
from gateway.core.models.stored_model import own_context, with_stored_texts
from gateway.core.output_parsers.syntax import syntax_of, syntax_of_parser
from gateway.core.prepare.capabilities import check_capabilities, check_usable
from gateway.core.prepare.literals import Picture, TokenIds
from gateway.core.prepare.prompt import Prompt
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, LoadEvent, RawPrompt, Think
from gateway.core.request.model_names import model_not_found, parse_model_name
from gateway.core.request.option_table import load_options, over
from gateway.keys.visits import may_use, may_use_all
from gateway.replicas.dispatch import Dispatcher, SlotRequest
from gateway.replicas.replicas import Connection
from gateway.templates.chat_prompt import ChatPrompts
from protos import runner_pb2

Step = TypeVar("Step")


def check_visible(model: str) -> None:
    """Let a caller go on with the name of a model itself, known or not.

    Raises:
        ModelNotFound: its key is not for this model; the same words as for one that no node has.
    """
    if not may_use(model):
        raise model_not_found(model)


class ModelAccess:
    """Access to a model for everything besides an answer."""

    def __init__(self, *, dispatcher: Dispatcher, prompts: ChatPrompts) -> None:
        self.routes = dispatcher.routes
        self._dispatcher = dispatcher
        self.prompts = prompts

    def visible(self) -> list[RouteInfo]:
        """List every model that the caller may see, newest first."""
        return [route for route in self.routes.all() if may_use(route.model.name)]

    def listed(self) -> list[ListedModel]:
        """List every name that the caller may use, aliases too, newest model first."""
        return listed(self.routes.all(), self.routes.aliases, may_use)

    def shown(self, text: str) -> str:
        """Replace the names of models that are not for this caller in a text of the scheduler."""
        if not text or may_use_all():
            return text
        return without_hidden(text, is_model=self.routes.holds, may_use=may_use)

    def resolve(self, model: str) -> tuple[str, Alias | None]:
        """Return the name of the model that the caller means, and the alias that led there.

        Raises:
            ModelNotFound: it is no name, or not for this caller.
        """
        return resolved(model, self.routes.aliases, may_use)

    def known_route(self, model: str) -> RouteInfo:
        """Return the route of a model that must exist, by its name or an alias.

        Raises:
            ModelNotFound: no node has it, or it is not for this caller.
        """
        name, alias = self.resolve(model)
        route = self.routes.find(name)
        if route is None:
            raise _not_found(model, alias)
        return route

    def stored_route(self, model: str) -> RouteInfo:
        """Return the route of a model by its own name, for what is done to the model itself.

        Raises:
            ModelNotFound: no node has it, or it is not for this caller.
            InvalidRequest: only an alias has this name.
        """
        check_visible(model)
        if (route := self.routes.find(model)) is not None:
            return route
        name, alias = self.resolve(model)
        if alias is None:
            raise model_not_found(model)
        raise InvalidRequest(
            f'"{model}" is an alias of "{name}"; only DELETE /puna/v1/aliases removes it', param="model"
        )

    def meant_route(self, model: str) -> RouteInfo | None:
        """As `known_route`; None: unknown.

        Raises:
            ModelNotFound: it is no name, or not for this caller.
        """
        return self.routes.find(self.resolve(model)[0])

    async def find(self, model: str, keep_alive_ms: int | None) -> AsyncIterator[LoadEvent | RouteInfo]:
        """Yield load events and, last, the route of a model. The scheduler is asked for one that is not in the table.

        Raises:
            ModelNotFound: no node has it, or the scheduler cannot be reached and the last table does not have it.
            BadModelFile: it is there, but broken.
        """
        name, alias = self.resolve(model)
        route = self.routes.find(name)
        if route is not None:
            check_usable(route.model)
            yield route
            return
        try:
            relay = self._dispatcher.loads.relay(model_name=name, context_tokens=None, keep_alive_ms=keep_alive_ms)
            async with closing(relay) as steps:
                async for step in steps:
                    yield step
        except ModelNotFound as error:
            raise _not_found(model, alias) from error
        except ModelUnavailable as error:
            # Without a scheduler the last table decides; without a table it is unknown.
            raise (_not_found(model, alias) if self.routes.heard else error) from error

    async def load(
        self,
        model: str,
        *,
        keep_alive_ms: int | None,
        record: RequestRecord,
        context_tokens: int | None = None,
        options: LoadOptions = NO_LOAD_OPTIONS,
        at_once: bool = False,
        move_to: str = "",
    ) -> AsyncIterator[LoadEvent]:
        """Make sure that a replica runs; ends when one does. `at_once`, `move_to`: as in `LoadJobs.relay`."""
        record.prepared()
        name, alias = self.resolve(model)
        if (known := self.routes.find(name)) is not None:
            check_usable(known.model)
            record.found(known.model)
            context_tokens = context_tokens or own_context(known.model)
            options = over(options, load_options(known.model.own_options))
        try:
            relay = self._dispatcher.loads.relay(
                model_name=name,
                context_tokens=context_tokens,
                keep_alive_ms=keep_alive_ms,
                options=options,
                load_only=True,
                at_once=at_once,
                move_to=move_to,
            )
            async with closing(relay) as steps:
                async for step in steps:
                    if isinstance(step, RouteInfo):
                        record.found(step.model)
                        record.changes_replicas(step.replicas)
                    else:
                        yield step
        except ModelNotFound as error:
            raise _not_found(model, alias) from error

    @contextmanager
    def changing(self, name: str, record: RequestRecord) -> Iterator[None]:
        """Note the model that the block fetches or makes, and its digest once the block has."""
        record.changes["object"] = name
        yield
        if (route := self.routes.find(name)) is not None:
            record.digest = route.model.shown_digest

    def template_of(self, model: ModelInfo) -> TemplateChoice | None:
        """Return the template of the model's conversations; None: they are refused."""
        try:
            return self.prompts.policy.choose(model)
        except TemplateFailed:
            return None

    def writes_json_arguments(self, model: str) -> bool:
        """Return False if the model writes the texts among a call's arguments as they are, which no schema holds."""
        route = self.meant_route(model)
        if route is None:
            return True
        named = syntax_of_parser(route.model.parser) if route.model.parser else None
        return (named or syntax_of(self.prompts.template_text(route.model), has_tools=True)).tags is None

    async def render(self, request: AnswerRequest) -> str:
        """Render the prompt as text, without running anything."""
        model = self.known_route(request.model).model
        check_usable(model)
        prompt = await make_prompt(self.prompts, model, with_stored_texts(request, model))
        images = count()
        return "".join(
            f"[img-{next(images)}]" if isinstance(segment, Picture) else segment.text
            for segment in prompt.segments
            if not isinstance(segment, TokenIds)
        )

    async def tokenize(self, model: str, prompt: Chat | RawPrompt, think: Think | None = None) -> tuple[int, ...]:
        """Return a prompt's token ids, as an answer would read it, without images. Loads the model if need be."""
        return tuple((await self._tokenize(model, prompt, think)).ids)

    async def count(self, model: str, prompt: Chat | RawPrompt, think: Think | None = None) -> int:
        """Count a prompt's places in the context, rows of images included. Loads the model if need be."""
        answer = await self._tokenize(model, prompt, think)
        return len(answer.ids) + answer.media_rows

    async def _tokenize(self, model: str, prompt: Chat | RawPrompt, think: Think | None) -> runner_pb2.TokenizeResponse:
        request = AnswerRequest(dialect=Dialect.ANTHROPIC, model=model, prompt=prompt, think=think)
        async with self._any_replica(model) as (route, connection):
            return await tokenize(connection.runner, await self._rendered(request, route.model))

    async def prompt(self, model: str, prompt: Chat | RawPrompt, think: Think | None) -> tuple[RouteInfo, Prompt]:
        """Render a prompt as an answer would, for a model that need not be loaded."""
        route = self.known_route(model)
        check_usable(route.model)
        request = AnswerRequest(dialect=Dialect.ANTHROPIC, model=model, prompt=prompt, think=think)
        return route, await self._rendered(request, route.model)

    async def _rendered(self, request: AnswerRequest, model: ModelInfo) -> Prompt:
        stored = with_stored_texts(request, model)
        if isinstance(request.prompt, Chat):  # any model has a vocabulary
            check_capabilities(stored, model)
        return await make_prompt(self.prompts, model, stored)

    async def detokenize(self, model: str, ids: list[int]) -> bytes:
        """Return the bytes of token ids. Loads the model if need be."""
        async with self._any_replica(model) as (_, connection):
            return await connection.runner.detokenize(ids)

    @asynccontextmanager
    async def _any_replica(self, model: str) -> AsyncIterator[tuple[RouteInfo, Connection]]:
        """Acquire any replica, for a small request."""
        route = await last_step(self.find(model, None), RouteInfo)
        name = route.model.name
        slot = SlotRequest(key=parse_model_name(name).key, model_name=name, need=ReplicaNeed())
        connection = await last_step(self._dispatcher.acquire(slot), Connection)
        try:
            yield route, connection
        finally:
            self._dispatcher.release(slot, connection)


async def last_step(steps: AsyncIterator[object], kind: type[Step]) -> Step:
    """Return the last of the steps to a route or a connection, without the progress before it."""
    last: object = None
    async with closing(steps):
        async for step in steps:
            last = step
    assert isinstance(last, kind)  # else an error was raised
    return last


def _not_found(requested: str, alias: Alias | None) -> ModelNotFound:
    return model_not_found(requested) if alias is None else alias_leads_nowhere(requested, alias)

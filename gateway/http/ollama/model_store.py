"""POST /api/pull, /api/create, /api/copy, DELETE /api/delete, HEAD and POST /api/blobs/{digest}."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import orjson
from pydantic import Field

from common.chat_templates import go_template_fault, is_jinja
from common.errors import InvalidRequest, ModelNotFound, NotSupported, PunaError, TemplateFailed
from common.telemetry.logs import get_logger
from gateway.answers.feed import Feed
from gateway.answers.model_access import check_visible
from gateway.answers.record import RequestRecord
from gateway.core.keys.keys import Scope
from gateway.core.models.creation import (
    blob_digest,
    check_origin,
    checked_files,
    license_texts,
    new_name,
)
from gateway.core.models.stored_model import ROLES
from gateway.core.request.model_names import given_model
from gateway.core.request.option_table import check_options
from gateway.http.endpoint.blob_body import BlobBody
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import Body, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import NEVER_THERE, OF_STORES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.http.endpoint.streaming import stream_ndjson
from gateway.http.ollama.bodies import OllamaMessage
from protos import store_pb2

_LINES = ("application/json", "application/x-ndjson")
_BLOB = "/api/blobs/{digest}"
_REFUSED = ("/api/push", "/api/me", "/api/signout", "/api/experimental/{path}")
log = get_logger()


class NamedBody(Body):
    """`name` is the older spelling of `model`."""

    model: str = ""
    name: str = ""


class PullBody(NamedBody):
    """POST /api/pull. User and password, which older clients send, are ignored."""

    insecure: bool = Field(default=False, description="Plain HTTP, for registries that are allowed it")
    stream: bool = True


class CreateBody(NamedBody):
    """POST /api/create."""

    base: str = Field(default="", alias="from", description="A model that this one is made from")
    files: dict[str, str] = Field(
        default_factory=dict, description="File names of GGUFs and the digests of their blobs, instead of `from`"
    )
    adapters: dict[str, str] = Field(default_factory=dict, description="GGUF adapters, likewise")
    template: str | None = Field(default=None, description="Jinja is run, Go is shown")
    system: str | None = None
    license: Any = Field(default=None, description="A text, or a list of texts")
    parameters: dict[str, Any] = Field(default_factory=dict, description="Option values; see docs/api.md")
    messages: list[OllamaMessage] = Field(default_factory=list, description="Every conversation begins with them")
    renderer: str = ""
    parser: str = Field(default="", description="Names the family that tool calls are read as")
    quantize: str = Field(default="", description="Not supported")
    stream: bool = True


class CopyBody(Body):
    """POST /api/copy."""

    source: str = ""
    destination: str = ""


class DeleteBody(NamedBody):
    """DELETE /api/delete."""


class StatusLine(ResponseModel):
    """One line of what a pull or create does; the last has the status "success"."""

    status: str
    digest: str = ""
    total: int = Field(default=0, description="Bytes")
    completed: int = 0
    peers: list[str] = Field(default=[], description="With success: nodes that the manifest or files came from")


class ModelStore(Endpoints):
    """Endpoints that change the models of the cluster."""

    async def pull(self, exchange: Exchange) -> None:
        """POST /api/pull."""
        body = validated(PullBody, await exchange.json())
        name = _new_name(body)
        check_visible(name)
        feed = self.service.work_feed(self.service.stores.pull(name, insecure=body.insecure), exchange.record)
        with self.models.changing(name, exchange.record):
            await _tell(exchange, feed, stream=body.stream)

    async def create(self, exchange: Exchange) -> None:
        """POST /api/create."""
        body = validated(CreateBody, await exchange.json())
        request = await self._creation(body)
        feed = self.service.work_feed(self.service.stores.create(request), exchange.record)
        with self.models.changing(request.name, exchange.record):
            await _tell(exchange, feed, stream=body.stream)

    async def copy(self, exchange: Exchange) -> None:
        """POST /api/copy."""
        body = validated(CopyBody, await exchange.json())
        if not body.source or not body.destination:
            field = "destination" if body.source else "source"
            raise InvalidRequest(f"{field} is required", param=field)
        destination = new_name(body.destination)
        check_visible(destination)
        try:
            route = self.models.known_route(body.source)
        except ModelNotFound as error:
            raise ModelNotFound(f'model "{body.source}" not found', param="source") from error
        exchange.record.found(route.model)
        exchange.record.changes["object"] = destination
        await self.service.whole(self.service.stores.copy(route, destination), exchange.record)
        await exchange.respond(200, b"", {})

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /api/delete."""
        body = validated(DeleteBody, await exchange.json())
        route = self.models.stored_route(given_model(body.model or body.name))
        exchange.record.found(route.model)
        exchange.record.changes_replicas(route.replicas)
        await self.service.whole(self.service.stores.delete(route), exchange.record)
        await exchange.respond(200, b"", {})

    async def has_blob(self, exchange: Exchange) -> None:
        """HEAD /api/blobs/{digest}: 200 or 404."""
        size_bytes = await self.service.stores.stat_blob(blob_digest(exchange.path_value))
        await exchange.respond(404 if size_bytes is None else 200, b"", {})

    async def put_blob(self, exchange: Exchange) -> None:
        """POST /api/blobs/{digest}: 201, or 200 if some node has it; what comes is passed on as it comes."""
        digest = blob_digest(exchange.path_value)
        body = BlobBody(exchange, bytes_max=self.service.blob_bytes_max)
        is_new = False
        if await self.service.stores.stat_blob(digest) is None:
            async with body:
                is_new = await self._stored(digest, body, exchange.record)
        headers: dict[str, str] = {}
        if not exchange.body_read:
            await exchange.discard_body()
            headers = {} if exchange.body_read else {"connection": "close"}
        await exchange.respond(201 if is_new else 200, b"", headers)

    async def refuse_push(self, _exchange: Exchange) -> None:
        """POST /api/push, /api/me, /api/signout and experiments: never."""
        raise NotSupported("this server does not push models and has no accounts")

    async def _stored(self, digest: str, body: BlobBody, record: RequestRecord) -> bool:
        stores = self.service.stores
        try:
            sent = stores.put_blob(digest, body.pieces(), size_bytes=body.size_bytes)
            return await self.service.whole(sent, record)
        except (PunaError, asyncio.CancelledError):
            # The reason is the end of the pieces, not that the call then broke off.
            if body.error is not None:
                raise body.error from None
            raise

    async def _creation(self, body: CreateBody) -> store_pb2.CreateRequest:
        """Check the body: refuse everything that can be refused without a node."""
        name = _new_name(body)
        check_visible(name)
        check_origin(body.base, body.files, body.quantize)
        files = checked_files(body.files, param="files")
        adapters = checked_files(body.adapters, param="adapters")
        base = self.models.known_route(body.base).model.name if body.base else ""
        for unknown in check_options(body.parameters).unknown:
            log.warning("option.ignored", option=unknown[:64])
        for message in body.messages:
            if message.role.lower() not in ROLES:
                raise InvalidRequest(f'invalid message role: "{message.role[:64]}"', param="messages")
        if body.template:
            await self._check_template(body.template)
        messages = [{"role": message.role.lower(), "content": message.content} for message in body.messages]
        return store_pb2.CreateRequest(
            name=name,
            from_model=base,
            files=files,
            adapters=adapters,
            template=body.template,
            system=body.system,
            licenses=license_texts(body.license),
            parameters_json=orjson.dumps(body.parameters).decode() if body.parameters else "",
            messages_json=orjson.dumps(messages).decode() if messages else "",
            renderer=body.renderer,
            parser=body.parser,
        )

    async def _check_template(self, template: str) -> None:
        if is_jinja(template):
            await self.models.prompts.check(template)
        elif fault := go_template_fault(template):
            raise TemplateFailed(f"template error: {fault}", param="template")


async def _tell(exchange: Exchange, feed: Feed[store_pb2.StoreProgress], *, stream: bool) -> None:
    exchange.record.stream = stream
    async with feed:
        if stream:
            await stream_ndjson(exchange, feed, _lines)
            return
        last: dict[str, object] = {}
        async for step in feed:
            (last,) = _lines(step)
    await exchange.respond_json(last)


def _lines(step: store_pb2.StoreProgress) -> Iterable[dict[str, object]]:
    line: dict[str, object] = {"status": step.status}
    if step.digest:
        line["digest"] = step.digest
    if step.total_bytes:
        line |= {"total": step.total_bytes, "completed": step.completed_bytes}
    if step.peers:
        line["peers"] = list(step.peers)
    yield line


def _new_name(body: NamedBody) -> str:
    return new_name(body.model or body.name)


def store_routes(service: Service) -> list[Route]:
    """List the routes of the store."""
    store = ModelStore(service)
    write = partial(Route, scope=Scope.MODELS_WRITE, errors=OF_STORES)
    report = partial(write, "POST", response=StatusLine, media_types=_LINES)
    silent = partial(write, media_types=())
    return [
        report("/api/pull", store.pull, "Fetch a model from its registry", body=PullBody),
        report("/api/create", store.create, "Make a model from another one or from files", body=CreateBody),
        silent("POST", "/api/copy", store.copy, "Give a model a second name", body=CopyBody),
        silent("DELETE", "/api/delete", store.delete, "Forget a model", body=DeleteBody),
        silent("HEAD", _BLOB, store.has_blob, "Existence of a file", statuses=(200, 404)),
        silent("POST", _BLOB, store.put_blob, "Send a file", takes_file=True, statuses=(200, 201)),
        *(
            write("POST", path, store.refuse_push, "Not supported", errors=NEVER_THERE, statuses=())
            for path in _REFUSED
        ),
    ]

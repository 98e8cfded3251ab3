"""GET /api/tags, /api/ps, /api/version, POST /api/show, GET /."""

import asyncio
import time
from collections.abc import Mapping

import orjson

from common.clock import MS_PER_S, NS_PER_MS, rfc3339_ns
from gateway.core.models.aliases import ListedModel
from gateway.core.models.chat_template import TemplateChoice
from gateway.core.models.model_card import (
    measured_reports,
    model_details,
    model_info,
    modelfile_of,
    own_parameters,
    parameters_text,
    tensor_rows,
)
from gateway.core.models.routes import ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.core.prepare.capabilities import check_usable
from gateway.core.request.model_names import given_model, parse_model_name
from gateway.core.request.option_table import check_options
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Endpoints
from gateway.http.ollama.bodies import ShowBody

# The level of Ollama's API that is spoken here; clients compare it.
OLLAMA_VERSION = "0.33.0"
NEVER = "9999-12-31T23:59:59Z"
_DEFAULT_KEEP_ALIVE_MS = 5 * 60 * 1000


class OllamaModels(Endpoints):
    """Models of the cluster, in Ollama's format."""

    async def root(self, exchange: Exchange) -> None:
        """GET /: liveness for clients; a browser is redirected to the page."""
        exchange.headers_out["vary"] = "Accept"
        if "text/html" in exchange.headers.get("accept", ""):
            await exchange.respond(302, b"", {"location": "/ui"})
            return
        await exchange.respond(200, b"Ollama is running", {"content-type": "text/plain; charset=utf-8"})

    async def version(self, exchange: Exchange) -> None:
        """GET /api/version."""
        await exchange.respond_json({"version": OLLAMA_VERSION, "puna": self.service.version})

    async def status(self, exchange: Exchange) -> None:
        """GET /api/status: clients ask it before they offer models of a cloud service."""
        await exchange.respond_json({"cloud": {"disabled": True, "source": "config"}})

    async def tags(self, exchange: Exchange) -> None:
        """GET /api/tags."""
        holders = await self.service.stores.holders()
        await exchange.respond_json({"models": [self._tag(model, holders) for model in self.models.listed()]})

    async def running(self, exchange: Exchange) -> None:
        """GET /api/ps."""
        now_ms = time.time_ns() // NS_PER_MS
        routes = [route for route in self.models.visible() if route.replicas]
        models = [self._running(route, now_ms) for route in routes]
        await exchange.respond_json({"models": sorted(models, key=lambda m: str(m["expires_at"]), reverse=True)})

    async def show(self, exchange: Exchange) -> None:
        """POST /api/show."""
        body = validated(ShowBody, await exchange.json())
        name = given_model(body.model or body.name)
        route = self.models.known_route(name)
        check_usable(route.model)
        exchange.record.found(route.model)
        flaw = await self.models.prompts.flaw_of(route.model)
        shown = _shown(route, self.models.template_of(route.model), flaw, body)
        if (alias := self.models.resolve(name)[1]) is not None:
            shown["alias_of"] = alias.target
        await self._add_headers(shown, route.model, verbose=body.verbose)
        answer = await asyncio.to_thread(orjson.dumps, shown) if body.verbose else orjson.dumps(shown)
        await exchange.respond(200, answer, {"content-type": "application/json"})

    async def _add_headers(self, shown: dict[str, object], model: ModelInfo, *, verbose: bool) -> None:
        """Add metadata that only the files themselves have, if a node can be reached for it."""
        stores = self.service.stores
        if verbose and (header := await stores.header(model.name, model.digest)) is not None:
            shown["model_info"] = model_info(header["metadata"], verbose=True)
            shown["tensors"] = tensor_rows(header["tensors"])
        if model.projector_digest and (header := await stores.header(model.name, model.projector_digest)) is not None:
            shown["projector_info"] = model_info(header["metadata"], verbose=verbose)

    def _tag(self, listed: ListedModel, holders: Mapping[str, frozenset[str]]) -> dict[str, object]:
        model, own_name = listed.route.model, listed.alias_of or listed.name
        serving = frozenset(replica.node_id for replica in listed.route.replicas)
        return {
            "name": model.name,
            "model": model.name,
            "modified_at": _time(model.modified_at_unix_s * MS_PER_S),
            "size": model.shown_size_bytes,
            "digest": model.shown_digest,
            "details": model_details(model),
            "capabilities": list(model.capabilities),
            "nodes": sorted(serving | holders.get(parse_model_name(own_name).key, frozenset())),
            **({"alias_of": listed.alias_of} if listed.alias_of else {}),
            **({"error": model.error} if model.error else {}),
            **({"template_flaw": flaw} if (flaw := self.models.prompts.flaw_seen(model)) else {}),
        }

    def _running(self, route: RouteInfo, now_ms: int) -> dict[str, object]:
        model = route.model
        replicas = [self._replica(model, replica, now_ms) for replica in route.replicas]
        in_devices = sum(device.size_bytes for replica in route.replicas for device in replica.devices)
        in_host = sum(replica.host_bytes for replica in route.replicas)
        return {
            "name": model.name,
            "model": model.name,
            "size": in_devices + in_host,
            "size_vram": in_devices,
            "digest": model.shown_digest,
            "details": model_details(model),
            "expires_at": max(str(replica["expires_at"]) for replica in replicas),
            "context_length": max(replica.context_tokens for replica in route.replicas),
            "replicas": replicas,
        }

    def _replica(self, model: ModelInfo, replica: ReplicaInfo, now_ms: int) -> dict[str, object]:
        pool = self.service.inference.dispatcher.pool
        load = pool.load_of(replica.key)
        state, reason = pool.state_of(replica)
        return {
            "placement": replica.placement_id,
            "node": replica.node_id,
            "state": state,
            **({"reason": reason} if reason else {}),
            "context_length": replica.context_tokens,
            "expires_at": _expiry(replica, now_ms),
            "slots_total": load.slots_total if load else replica.slots_total,
            "slots_busy": load.slots_busy if load else replica.slots_busy,
            "devices": _devices(model, replica),
        }


def _devices(model: ModelInfo, replica: ReplicaInfo) -> list[dict[str, object]]:
    """List layers and bytes by device; the last entry is host RAM, which holds the layers that no device has."""
    shares = [(device.device_id, device.name, device.layer_count, device.size_bytes) for device in replica.devices]
    layers_elsewhere = model.layer_count + 1 - sum(device.layer_count for device in replica.devices)
    if replica.host_bytes:
        shares.append(("host", "CPU", max(layers_elsewhere, 0), replica.host_bytes))
    return [
        {"node": replica.node_id, "id": device_id, "name": name, "layers": layers, "bytes": size_bytes}
        for device_id, name, layers, size_bytes in shares
    ]


def _expiry(replica: ReplicaInfo, now_ms: int) -> str:
    """Format the end of keep_alive. A busy replica's clock starts at the end of its last request: now or later."""
    if replica.expires_at_unix_ms is not None:
        return _time(replica.expires_at_unix_ms)
    if replica.stays or replica.state is ReplicaState.LOADING:
        return NEVER
    return _time(now_ms + (_DEFAULT_KEEP_ALIVE_MS if replica.keep_alive_ms is None else replica.keep_alive_ms))


def _shown(route: RouteInfo, choice: TemplateChoice | None, flaw: str, body: ShowBody) -> dict[str, object]:
    """`system`, `template` and `options` of the body show the model as it would be with them."""
    model = route.model
    template = body.template or model.template or (choice.text if choice is not None else "")
    system = body.system or model.system
    parameters = {**own_parameters(model), **check_options(body.options).values}
    metadata = orjson.loads(model.metadata_json)
    return {
        "license": "\n".join(model.licenses) or str(metadata.get("general.license", "")),
        "modelfile": modelfile_of(
            model, template=model.template, system=system, parameters=parameters, messages=model.messages
        ),
        "parameters": parameters_text(parameters),
        "template": template,
        "system": system,
        "details": model_details(model),
        "messages": [{"role": message.role, "content": message.content} for message in model.messages],
        "model_info": model_info(metadata, verbose=body.verbose),
        "capabilities": list(model.capabilities),
        "modified_at": _time(model.modified_at_unix_s * MS_PER_S),
        "puna": {
            "digest": model.digest,
            "template_source": choice.source if choice is not None else "none",
            "template_flaw": flaw or None,
            "measured": measured_reports(route),
        },
    }


def _time(unix_ms: int) -> str:
    try:
        return rfc3339_ns(unix_ms * NS_PER_MS)
    except (ValueError, OverflowError, OSError):
        return NEVER  # beyond the calendar, as a keep_alive of centuries is

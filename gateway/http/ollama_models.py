"""GET /api/tags, /api/ps, /api/version, POST /api/show, GET /."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import orjson

from common.clock import MS_PER_S, NS_PER_MS, rfc3339_ns
from common.errors import InvalidRequest
from gateway.core.capabilities import check_usable
from gateway.core.durations import FOREVER_MS
from gateway.core.model_text import model_details
from gateway.core.replica_load import ReplicaLoad
from gateway.core.routes import ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.http.exchange import Exchange
from gateway.http.fields import validated
from gateway.http.ollama_bodies import ShowBody
from gateway.http.service import Service
from gateway.templates.chat_prompt import CHATML_TEMPLATE

# The level of Ollama's API that is spoken here; clients compare it.
OLLAMA_VERSION = "0.33.0"
NEVER = "9999-12-31T23:59:59Z"
_DEFAULT_KEEP_ALIVE_MS = 5 * 60 * 1000
_ARRAY_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class OllamaModels:
    """What the cluster has, in Ollama's words."""

    service: Service

    async def root(self, exchange: Exchange) -> None:
        """GET /: how clients see whether anybody is there."""
        await exchange.respond(200, b"Ollama is running", {"content-type": "text/plain; charset=utf-8"})

    async def version(self, exchange: Exchange) -> None:
        """GET /api/version."""
        await exchange.respond_json({"version": OLLAMA_VERSION, "puna": self.service.version})

    async def tags(self, exchange: Exchange) -> None:
        """GET /api/tags."""
        routes = self.service.inference.models.visible()
        await exchange.respond_json({"models": [self._tag(route) for route in routes]})

    async def running(self, exchange: Exchange) -> None:
        """GET /api/ps."""
        now_ms = time.time_ns() // NS_PER_MS
        routes = [route for route in self.service.inference.models.visible() if route.replicas]
        models = [self._running(route, now_ms) for route in routes]
        await exchange.respond_json({"models": sorted(models, key=lambda m: str(m["expires_at"]), reverse=True)})

    async def show(self, exchange: Exchange) -> None:
        """POST /api/show."""
        body = validated(ShowBody, await exchange.json())
        name = body.model or body.name
        if not name:
            raise InvalidRequest("model is required", param="model")
        model = self.service.inference.models.known_route(name).model
        check_usable(model)
        exchange.record.model = model.name
        await exchange.respond_json(_shown(model, verbose=body.verbose))

    def _tag(self, route: RouteInfo) -> dict[str, object]:
        model = route.model
        return {
            "name": model.name,
            "model": model.name,
            "modified_at": _time(model.modified_at_unix_s * MS_PER_S),
            "size": model.size_bytes,
            "digest": model.digest,
            "details": model_details(model),
            "capabilities": list(model.capabilities),
            "nodes": sorted({replica.node_id for replica in route.replicas}),
            **({"error": model.error} if model.error else {}),
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
            "digest": model.digest,
            "details": model_details(model),
            "expires_at": max(str(replica["expires_at"]) for replica in replicas),
            "context_length": max(replica.context_tokens for replica in route.replicas),
            "replicas": replicas,
        }

    def _replica(self, model: ModelInfo, replica: ReplicaInfo, now_ms: int) -> dict[str, object]:
        load = self.service.inference.dispatcher.pool.load_of(replica.key)
        return {
            "placement": replica.placement_id,
            "node": replica.node_id,
            "state": str(load.state if load else replica.state),
            "context_length": replica.context_tokens,
            "expires_at": _expiry(replica, load, now_ms),
            "slots_total": load.slots_total if load else replica.slots_total,
            "slots_busy": load.slots_busy if load else replica.slots_busy,
            "devices": _devices(model, replica),
        }


def _devices(model: ModelInfo, replica: ReplicaInfo) -> list[dict[str, object]]:
    """What lies where; the last entry is host RAM, which holds the layers that no device has."""
    shares = [(device.device_id, device.name, device.layer_count, device.size_bytes) for device in replica.devices]
    layers_elsewhere = model.layer_count + 1 - sum(device.layer_count for device in replica.devices)
    if replica.host_bytes:
        shares.append(("host", "CPU", max(layers_elsewhere, 0), replica.host_bytes))
    return [
        {"node": replica.node_id, "id": device_id, "name": name, "layers": layers, "bytes": size_bytes}
        for device_id, name, layers, size_bytes in shares
    ]


def _expiry(replica: ReplicaInfo, load: ReplicaLoad | None, now_ms: int) -> str:
    """When keep_alive ends. A busy replica's clock starts with the end of its last request: at the earliest now."""
    if replica.expires_at_unix_ms is not None:
        return _time(replica.expires_at_unix_ms)
    busy = load is not None and load.work > 0
    if busy and replica.state is not ReplicaState.LOADING and replica.keep_alive_ms != FOREVER_MS:
        keep_alive_ms = replica.keep_alive_ms if replica.keep_alive_ms is not None else _DEFAULT_KEEP_ALIVE_MS
        if keep_alive_ms >= 0:
            return _time(now_ms + keep_alive_ms)
    return NEVER


def _shown(model: ModelInfo, *, verbose: bool) -> dict[str, object]:
    metadata = orjson.loads(model.metadata_json)
    parameters = "\n".join(f"{name:30} {value}" for name, value in sorted(model.sampling_defaults.items()))
    return {
        "license": str(metadata.get("general.license", "")),
        "modelfile": _modelfile(model),
        "parameters": parameters,
        "template": model.chat_template or CHATML_TEMPLATE,
        "system": "",
        "details": model_details(model),
        "messages": [],
        "model_info": dict(_without_long_arrays(metadata.items(), verbose=verbose)),
        "capabilities": list(model.capabilities),
        "modified_at": _time(model.modified_at_unix_s * MS_PER_S),
        "puna": {"template_source": "gguf" if model.chat_template else "fallback: chatml"},
    }


def _modelfile(model: ModelInfo) -> str:
    lines = [f"FROM {model.name}", *(f"PARAMETER {name} {value}" for name, value in model.sampling_defaults.items())]
    return "\n".join(lines) + "\n"


def _without_long_arrays(items: Iterable[tuple[str, object]], *, verbose: bool) -> Iterable[tuple[str, object]]:
    for key, value in items:
        too_long = isinstance(value, list) and len(value) > _ARRAY_SHOWN_MAX and not verbose
        yield key, [] if too_long or value is None else value


def _time(unix_ms: int) -> str:
    try:
        return rfc3339_ns(unix_ms * NS_PER_MS)
    except (ValueError, OverflowError, OSError):
        return NEVER  # beyond the calendar, as a keep_alive of centuries is

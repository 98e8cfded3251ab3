"""Placements that run and that operators want, with explain, load and unload: /puna/v1/placements."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from common.errors import InvalidRequest, ModelUnavailable
from common.spec import codecs
from common.telemetry.logs import get_logger
from gateway.converters.constraints import (
    constraints_from_proto,
    constraints_to_proto,
    explanation_from_proto,
)
from gateway.converters.inventory import cleared_device
from gateway.core.dispatch.replica_load import ReplicaLoad
from gateway.core.keys.hidden_names import texts_shown
from gateway.core.keys.keys import Scope
from gateway.core.models.routes import ReplicaInfo, ReplicaState, RouteInfo
from gateway.core.request.answers import LoadEvent, LoadUpdate, Queued
from gateway.core.request.model_names import given_model
from gateway.core.request.option_table import PLACEMENT_RULES, SAMPLING_RULES, OptionValue, load_options, whole_number
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import check_names, validated
from gateway.http.endpoint.route_errors import OF_LOADS, OF_MODEL_NAMES, OF_NODES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service, checked_options
from gateway.http.endpoint.streaming import stream_ndjson
from gateway.http.puna.bodies import (
    SLOTS_MAX,
    ClearDeviceBody,
    ClearedDevice,
    ConstraintsAndPlacements,
    ConstraintsAnswer,
    ConstraintsBody,
    ExplainBody,
    ExplanationAnswer,
    Forgotten,
    LoadBody,
    MoveBody,
    PlacementList,
    UnloadBody,
    Unloaded,
)
from gateway.keys.visits import may_use
from gateway.replicas.replicas import ReplicaPool
from protos import scheduler_pb2

log = get_logger()

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OPTIONS = ("num_ctx", "num_gpu", "main_gpu")
_KNOWN = ("model", *_OPTIONS, "require_gpu", "slots", "last")
_NDJSON = "application/x-ndjson"
# A measurement takes some tens of milliseconds, and a decision may need several.
EXPLAIN_WAIT_MS = 5000
OPTIONS = SAMPLING_RULES.keys() | PLACEMENT_RULES.keys()


def explain_question(query: Mapping[str, str]) -> ExplainBody:
    """Parse a query. A misspelt parameter is refused: to ignore it would answer another question.

    Raises:
        InvalidRequest: a parameter that there is not, or a value that it does not take; `param` is its name.
    """
    check_names(query, _KNOWN, "parameter")
    model = given_model(query.get("model", ""))
    options: dict[str, object] = {"require_gpu": _is_yes(query, "require_gpu")}
    for name in _OPTIONS:
        if (text := query.get(name)) is not None:
            options[name] = int(text) if _WHOLE.fullmatch(text) else text
    slots = query.get("slots")
    if slots is not None and not (_WHOLE.fullmatch(slots) and 1 <= int(slots) <= SLOTS_MAX):
        raise InvalidRequest(f"slots must be a whole number from 1 to {SLOTS_MAX}", param="slots")
    return ExplainBody(
        model=model,
        options=options,
        last=_is_yes(query, "last"),
        slots=int(slots) if slots is not None else None,
    )


def _is_yes(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name)
    if text is None:
        return False
    if (found := _YES_NO.get(text.lower())) is None:
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return found


class Placements(Endpoints):
    """For operators."""

    async def list_all(self, exchange: Exchange) -> None:
        """GET /puna/v1/placements: every replica in the routes, and every model that something is set for."""
        check_names(exchange.query, ("model",), "parameter")
        named = exchange.query.get("model")
        name = "" if named is None else self._known_name(named)
        placements = self._placements(named)
        try:
            found = await self.scheduler.list_constraints(name)
        except ModelUnavailable:
            models = None  # no scheduler answers; running replicas are known all the same
        else:
            models = [constraints_from_proto(model) for model in found if may_use(model.model_name)]
        await exchange.respond_json({"placements": placements, "models": models})

    async def get(self, exchange: Exchange) -> None:
        """GET /puna/v1/placements/{model}: what is set for a model, and its replicas."""
        name = self._known_name(exchange.path_value)
        (model,) = await self.scheduler.list_constraints(name)
        known = self.models.routes.find(name) is not None
        placements = self._placements(name) if known else []
        await exchange.respond_json({**constraints_from_proto(model), "placements": placements})

    async def put(self, exchange: Exchange) -> None:
        """PUT /puna/v1/placements/{model}: set what is wanted of it; replaces what was set before."""
        body = validated(ConstraintsBody, await exchange.json())
        model = constraints_to_proto(self._known_name(exchange.path_value), body.model_dump())
        answer = await self.scheduler.put_constraints(model)
        await exchange.respond_json(constraints_from_proto(answer))

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /puna/v1/placements/{model}: forget what was set."""
        name = self._known_name(exchange.path_value)
        was_set = await self.scheduler.remove_constraints(name)
        await exchange.respond_json({"model": name, "was_set": was_set})

    async def explain_get(self, exchange: Exchange) -> None:
        """GET /puna/v1/explain?model=…: the last decision with `last=1`, else what would be decided now."""
        await self._explain(exchange, explain_question(exchange.query))

    async def explain_post(self, exchange: Exchange) -> None:
        """POST /puna/v1/explain: the same with the options of a request."""
        await self._explain(exchange, validated(ExplainBody, await exchange.json()))

    async def load(self, exchange: Exchange) -> None:
        """POST /puna/v1/load: have a replica, and hear how that goes; one line per news.

        An operator's load: earlier crashes of the model are forgotten. Those of other routes wait for their pause.
        """
        body = validated(LoadBody, await exchange.json())
        options = self._checked(exchange, body.options)
        load = self.models.load(
            body.model,
            keep_alive_ms=self.service.keep_alive_ms(body.keep_alive),
            context_tokens=whole_number(options.get("num_ctx")),
            options=load_options(options),
            record=exchange.record,
            at_once=True,
        )
        async with self.service.work_feed(_with_end(load), exchange.record) as feed:
            await stream_ndjson(exchange, feed, _load_lines)

    async def move(self, exchange: Exchange) -> None:
        """POST /puna/v1/move: load a model on a node, then end its replica elsewhere; one line per news, as for a load.

        Answers that run there go on at the new replica.
        """
        body = validated(MoveBody, await exchange.json())
        log.info("model.move_asked", model=body.model, node=body.node)
        exchange.record.changes["to"] = body.node
        load = self.models.load(body.model, keep_alive_ms=None, record=exchange.record, move_to=body.node)
        async with self.service.work_feed(_with_end(load), exchange.record) as feed:
            await stream_ndjson(exchange, feed, _load_lines)

    async def unload(self, exchange: Exchange) -> None:
        """POST /puna/v1/unload: have the replicas of a model stopped that no constraint keeps."""
        body = validated(UnloadBody, await exchange.json())
        route = self.models.known_route(body.model)
        exchange.record.found(route.model)
        exchange.record.changes_replicas(route.replicas)
        replicas = await self.scheduler.unload_model(route.model.name)
        await exchange.respond_json({"model": route.model.name, "replicas": replicas})

    async def clear_device(self, exchange: Exchange) -> None:
        """POST /puna/v1/devices/clear: have an excluded device tested again."""
        body = validated(ClearDeviceBody, await exchange.json())
        exchange.record.changes["object"] = body.device
        answer = await self.scheduler.clear_device(body.device)
        await exchange.respond_json(cleared_device(answer))

    async def _explain(self, exchange: Exchange, body: ExplainBody) -> None:
        values = self._checked(exchange, body.options)
        request = scheduler_pb2.ExplainRequest(
            model_name=self._known_name(body.model),
            context_tokens=whole_number(values.get("num_ctx")),
            options=codecs.LOAD_OPTIONS.to_proto(load_options(values)),
            last=body.last,
            wait_ms=EXPLAIN_WAIT_MS,
            slots=body.slots or 0,
        )
        explanation = await self.scheduler.explain(request)
        exchange.record.model = explanation.model_name
        shown = self.models.shown
        await exchange.respond_json(texts_shown(explanation_from_proto(explanation), shown))

    def _checked(self, exchange: Exchange, options: Mapping[str, object]) -> Mapping[str, OptionValue]:
        """Check the options of a request. A misspelt one is refused: without effect it would not be noticed."""
        check_names(options, OPTIONS, "option")
        return checked_options(self.service, exchange, options)

    def _known_name(self, model: str) -> str:
        """Return the name as the cluster has it; one that no node has stays as it is written."""
        name, _ = self.models.resolve(given_model(model))
        route = self.models.routes.find(name)
        return route.model.name if route is not None else name

    def _placements(self, requested: str | None) -> list[dict[str, object]]:
        return placements_of(
            self.service.inference.dispatcher.pool,
            self.models.visible(),
            requested=None if requested is None else self.models.known_route(requested),
        )


def placements_of(
    pool: ReplicaPool, visible: Iterable[RouteInfo], *, requested: RouteInfo | None
) -> list[dict[str, object]]:
    """List each replica once, with all names that it serves and the caller may see; `requested`: only of this name.

    Its own name is the requested one, else the first in the alphabet: a newer copy does not change that one.
    """
    named: dict[str, dict[str, RouteInfo]] = {}
    for route in visible:
        for replica in route.replicas:
            named.setdefault(replica.key, {})[route.model.name] = route
    wanted = None if requested is None else {replica.key for replica in requested.replicas}
    placements = []
    for key, routes in named.items():
        if wanted is not None and key not in wanted:
            continue
        names = sorted(routes)
        route = requested or routes[names[0]]
        replica = next(one for one in route.replicas if one.key == key)
        placements.append({**placement_of(pool, route, replica), "names": names})
    return placements


def placement_of(pool: ReplicaPool, route: RouteInfo, replica: ReplicaInfo) -> dict[str, object]:
    """Describe one replica, with its live load."""
    load = pool.load_of(replica.key)
    state, reason = pool.state_of(replica)
    return {
        "id": replica.placement_id,
        "generation": replica.generation,
        "model": route.model.name,
        "digest": route.model.digest,
        "node": replica.node_id,
        "state": state,
        "fraction": _fraction(replica, load) if state == ReplicaState.LOADING else None,
        "reason": reason or None,
        "layout": [
            {"device": device.device_id, "name": device.name, "layers": device.layer_count}
            for device in replica.devices
        ],
        "measured_bytes": {device.device_id: device.size_bytes for device in replica.devices},
        "host_bytes": replica.host_bytes,
        "context_length": replica.context_tokens,
        "slots_total": load.slots_total if load else replica.slots_total,
        "slots_busy": load.slots_busy if load else replica.slots_busy,
        "queued": load.queued if load else replica.queued,
        "reachable": load.reachable if load else False,
        "expires_at_unix_ms": replica.expires_at_unix_ms,
    }


def _fraction(replica: ReplicaInfo, load: ReplicaLoad | None) -> float:
    """Return the progress of its load; the replica itself reports it earlier than the routes."""
    return max(replica.load_fraction, load.load_fraction) if load is not None else replica.load_fraction


@dataclass(frozen=True, slots=True)
class Loaded:
    """A replica runs."""


async def _with_end(load: AsyncIterator[LoadEvent]) -> AsyncIterator[LoadEvent | Loaded]:
    async for event in load:
        yield event
    yield Loaded()


def _load_lines(event: LoadEvent | Loaded) -> Iterable[dict[str, object]]:
    match event:
        case Loaded():
            yield {"status": "ready"}
        case Queued():
            yield {"status": "queued", "position": event.position, **_expected(event)}
        case LoadUpdate():
            yield {
                "status": "loading",
                "fraction": event.fraction,
                "bytes_done": event.bytes_done,
                "bytes_total": event.bytes_total,
                **_expected(event),
            }


def _expected(event: Queued | LoadUpdate) -> dict[str, object]:
    """Return the reason for a load's wait and its expected time; unknown values are left out."""
    expected: dict[str, object] = {"waits_for": event.waits_for} if event.waits_for else {}
    return expected if event.eta_s is None else {**expected, "eta_s": round(event.eta_s, 1)}


def placement_routes(service: Service) -> list[Route]:
    """Build the routes of placements: loaded, wanted, and explained."""
    placements = Placements(service)
    one, policy, explain = "/puna/v1/placements/{model}", "/puna/v1/models/{model}/policy", "/puna/v1/explain"
    route = partial(Route, errors=OF_THE_CLUSTER | OF_MODEL_NAMES)
    read, admin = partial(route, scope=Scope.MODELS_READ), partial(route, scope=Scope.ADMIN_CLUSTER)
    write = partial(route, "POST", scope=Scope.MODELS_WRITE)
    found, set_ = "Constraints of a model, and its replicas", "Set the constraints of a model"
    return [
        read(
            "GET", "/puna/v1/placements", placements.list_all, "Loaded replicas and constraints", response=PlacementList
        ),
        read("GET", one, placements.get, found, response=ConstraintsAndPlacements),
        admin("PUT", one, placements.put, set_, body=ConstraintsBody, response=ConstraintsAnswer),
        admin("DELETE", one, placements.delete, "Remove the constraints of a model", response=Forgotten),
        read("GET", explain, placements.explain_get, "Explain the placement of a model", response=ExplanationAnswer),
        read(
            "POST",
            explain,
            placements.explain_post,
            "Explain a placement with options",
            body=ExplainBody,
            response=ExplanationAnswer,
        ),
        write("/puna/v1/load", placements.load, "Load a model", body=LoadBody, media_types=(_NDJSON,), errors=OF_LOADS),
        admin(
            "POST",
            "/puna/v1/move",
            placements.move,
            "Move a replica to a node",
            body=MoveBody,
            media_types=(_NDJSON,),
            errors=OF_LOADS | OF_NODES,
        ),
        write("/puna/v1/unload", placements.unload, "Stop the replicas of a model", body=UnloadBody, response=Unloaded),
        admin(
            "POST",
            "/puna/v1/devices/clear",
            placements.clear_device,
            "Test an excluded device again",
            body=ClearDeviceBody,
            response=ClearedDevice,
            errors=OF_NODES,
        ),
        admin("GET", policy, placements.get, found, response=ConstraintsAndPlacements),
        admin("PUT", policy, placements.put, set_, body=ConstraintsBody, response=ConstraintsAnswer),
    ]

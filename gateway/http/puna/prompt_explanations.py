"""/puna/v1/explain/prompt: the replica that a request with a prompt would go to, and why."""

from typing import Any

from pydantic import Field

from common.clock import MS_PER_S
from common.spec.prompt_names import inputs_at
from gateway.answers.prompt import tokenize
from gateway.core.dispatch.prompt_prefixes import PromptPrefixes, name_prefixes
from gateway.core.dispatch.replica_choice import (
    ReplicaCandidate,
    ReplicaNeed,
    choose_replica,
    known_paces,
    predict,
)
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import OF_ANSWERS
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.http.puna.tokens import TokenizeBody, prompt_of_body
from gateway.keys.visits import cache_salt
from gateway.large_texts import beside_loop
from protos import runner_pb2


class HeldPart(ResponseModel):
    """The beginning of the prompt that one place holds."""

    place: str = Field(description="slots; parked, in the RAM of the runner; ram or disk, kept by its node")
    tokens: int = Field(description="Whole blocks of 256 bytes")
    restore_ms: float | None = Field(description="Predicted time to restore it; null: it need not be restored")


class ExplainedPlace(ResponseModel):
    """A replica that could serve the request."""

    placement: str
    node: str
    slots_total: int
    slots_free: int
    held: list[HeldPart]
    first_token_ms: float | None = Field(
        description="Predicted; null: no replica of the model has computed anything yet"
    )
    slowdown_ms: float | None = Field(description="By which the answers that run there make this one longer")
    goes_on_from: str | None = Field(description="The place that the prediction begins at; null: all is computed")
    is_chosen: bool


class PromptExplanation(ResponseModel):
    """Response of POST /puna/v1/explain/prompt."""

    model: str
    prompt_bytes: int
    prompt_tokens: int | None = Field(description="null: no replica is there to count them")
    replicas: list[ExplainedPlace] = Field(description="Ready ones, the best first")
    brings_from: str | None = Field(description="Node whose state of more of the prompt the chosen one would ask for")
    message: str = Field(description="The reason for the choice, or for none")


def prompt_explanation_routes(service: Service) -> list[Route]:
    """Build the route of explanations."""
    return [
        Route(
            "POST",
            "/puna/v1/explain/prompt",
            PromptExplanations(service).explain,
            "Explain the choice of a replica for a prompt",
            scope=Scope.MODELS_READ,
            body=TokenizeBody,
            response=PromptExplanation,
            errors=OF_ANSWERS,
        )
    ]


class PromptExplanations(Endpoints):
    """For operators and for callers with a key, who see what is held of their own tenant's prompts."""

    async def explain(self, exchange: Exchange) -> None:
        """POST /puna/v1/explain/prompt: loads and computes nothing."""
        body = validated(TokenizeBody, await exchange.json())
        asked, think = prompt_of_body(body)
        route, prompt = await self.models.prompt(body.model, asked, think)
        exchange.record.found(route.model)
        salt = cache_salt()
        prefixes = await beside_loop(prompt.size_bytes, lambda: name_prefixes(prompt.parts(), salt=salt))
        pool = self.service.inference.dispatcher.pool
        candidates = pool.candidates(route)
        connections = {one.key: pool.connection(one.key) for one in candidates}
        tokens = None
        if candidates:
            runner = connections[candidates[0].key].runner
            tokens = await self.service.whole(tokenize(runner, prompt), exchange.record)
        chosen = choose_replica(candidates, ReplicaNeed(prefixes=prefixes))
        rows = _rows(candidates, prefixes, tokens, chosen=chosen)
        for row in rows:
            info = connections[row.pop("key")].info
            row |= {"placement": info.placement_id, "node": info.node_id}
        await exchange.respond_json(
            {
                "model": route.model.name,
                "prompt_bytes": prefixes.size_bytes,
                "prompt_tokens": None if tokens is None else len(tokens.ids) + tokens.media_rows,
                "replicas": rows,
                "brings_from": (pool.node_with_state(connections[chosen], prefixes) or None) if chosen else None,
                "message": _message(candidates, chosen),
            }
        )


def _rows(
    candidates: list[ReplicaCandidate],
    prefixes: PromptPrefixes,
    tokens: runner_pb2.TokenizeResponse | None,
    *,
    chosen: str | None,
) -> list[dict[str, Any]]:
    """Describe each replica, the chosen one first, then by predicted cost."""
    paces = known_paces(candidates)
    is_measured = any(one.pace.token_s for one in candidates)
    rows = []
    for one in candidates:
        predicted = predict(one, prefixes, pace=paces[one.key])
        rows.append(
            (
                (one.key != chosen, one.slots_free == 0, predicted.cost_s, one.key),
                {
                    "key": one.key,
                    "slots_total": one.slots_total,
                    "slots_free": one.slots_free,
                    "held": _held(one, prefixes, tokens),
                    "first_token_ms": _ms(predicted.first_token_s) if is_measured else None,
                    "slowdown_ms": _ms(predicted.slowdown_s) if is_measured else None,
                    "goes_on_from": predicted.place or None,
                    "is_chosen": one.key == chosen,
                },
            )
        )
    return [row for _, row in sorted(rows, key=lambda ranked: ranked[0])]


def _held(
    candidate: ReplicaCandidate, prefixes: PromptPrefixes, tokens: runner_pb2.TokenizeResponse | None
) -> list[dict[str, Any]]:
    places = {place: held for place, held in candidate.holdings.bytes_by_place(prefixes).items() if held}
    if tokens is None or not places:
        return []
    counts = inputs_at([*places.values()], tokens.pieces, size_bytes=prefixes.size_bytes)
    restores = candidate.holdings.tiers
    return [
        {
            "place": place,
            "tokens": count,
            "restore_ms": _ms(next(prefixes.restores(restores[place]))[1]) if place in restores else None,
        }
        for place, count in zip(places, counts, strict=True)
    ]


def _message(candidates: list[ReplicaCandidate], chosen: str | None) -> str:
    if not candidates:
        return "no replica is ready: the request would load the model or wait for its load"
    if chosen is None:
        return "every slot is taken: the request would wait for the first free one"
    free = sum(one.slots_free > 0 for one in candidates)
    return "the earliest first token, with the slowdown, of those with a free slot" if free > 1 else "the only free one"


def _ms(seconds: float) -> float:
    return round(seconds * MS_PER_S, 1)

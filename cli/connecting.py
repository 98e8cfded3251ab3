"""The server's answers that decide if a client can work with a model, and the change that makes it so."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlencode

from cli.core.connect.checks import (
    Fit,
    ServedModel,
    model_facts,
    placed_where,
    trial_contexts,
    wanted_context,
)
from cli.core.connect.client import ConnectClient
from cli.core.exit_codes import ExitCode
from cli.errors import CommandFailed
from cli.progress import load_reporter
from cli.server import Server
from common.nearest import did_you_mean

# A model that was never measured is measured in several rounds, and each explanation waits for one.
_EXPLAIN_ROUNDS_MAX = 6


def who_am_i(server: Server) -> dict[str, Any]:
    """Return what the key is good for.

    Raises:
        CommandFailed: the server is not there, is no Puna, or the key is missing or wrong.
    """
    try:
        return server.get("/puna/v1/whoami")
    except CommandFailed as error:
        if error.code is ExitCode.NOT_FOUND:
            raise CommandFailed(f"something else than Puna answers at {server.url}; set PUNA_HOST") from error
        raise


def suitable_model(server: Server, client: ConnectClient) -> str:
    """Return the first model that the client can work with, loaded ones first; else the first that answers.

    Raises:
        CommandFailed: there is none that answers.
    """
    models = [one for one in server.get("/v1/models").get("data") or [] if _answers(one)]
    if not models:
        raise CommandFailed("there is no model that answers; `puna pull` fetches one", ExitCode.NOT_FOUND)
    return str(min(models, key=lambda one: (not _suits(one, client), one["puna"].get("state") != "ready"))["id"])


def inspect_model(server: Server, name: str) -> ServedModel:
    """Return what the server says of a model.

    Raises:
        CommandFailed: there is no such model, or its file is broken.
    """
    try:
        shown = server.send("POST", "/api/show", {"model": name})
    except CommandFailed as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        names = [str(one["name"]).removesuffix(":latest") for one in server.get("/api/tags").get("models") or []]
        text = f"{error}{did_you_mean(name, names, else_say='`puna models` lists them')}"
        raise CommandFailed(text, ExitCode.NOT_FOUND) from error
    placements = server.get(f"/puna/v1/placements?{urlencode({'model': name})}").get("placements") or []
    return model_facts(shown, placements, explain(server, name), name=name)


def explain(server: Server, model: str, *, num_ctx: int | None = None) -> dict[str, Any]:
    """Return where a replica would go, once the model is measured."""
    query = urlencode({"model": model, **({} if num_ctx is None else {"num_ctx": num_ctx})})
    answer: dict[str, Any] = {}
    for _ in range(_EXPLAIN_ROUNDS_MAX):
        answer = server.get(f"/puna/v1/explain?{query}")
        if answer.get("outcome") != "measuring":
            break
    return answer


def largest_fit(server: Server, client: ConnectClient, facts: ServedModel) -> Fit:
    """Return the largest context that the cluster can hold, up to the one that the client wants."""
    for tokens in trial_contexts(wanted_context(client, facts), facts.context):
        answer = explain(server, facts.name, num_ctx=tokens)
        if answer.get("outcome") == "placed":
            return Fit(tokens=tokens, where=placed_where(answer))
    return Fit(tokens=0, where="")


def set_context(server: Server, facts: ServedModel, tokens: int, *, as_json: bool) -> Iterator[str]:
    """Have replicas of a model loaded with a context, and a larger one in place of those that are smaller.

    Yields what is done. What else is set for the model stays.
    """
    path = f"/puna/v1/placements/{quote(facts.name, safe='')}"
    before = dict(server.get(path).get("constraints") or {})
    server.send("PUT", path, {**before, "num_ctx": tokens})
    yield f"replicas of {facts.name} are loaded with num_ctx {tokens} from now on"
    if not any(one < tokens for one in facts.replicas):
        return
    news = server.stream("/puna/v1/load", {"model": facts.name, "options": {"num_ctx": tokens}})
    if as_json:
        for _ in news:
            pass
    else:
        with closing(news), load_reporter(facts.name, as_json=False) as report:
            for one in news:
                report(one)
    yield f"a replica with {tokens} tokens is loaded"


def _answers(model: dict[str, Any]) -> bool:
    return "completion" in ((model.get("puna") or {}).get("capabilities") or ())


def _suits(model: dict[str, Any], client: ConnectClient) -> bool:
    puna = model["puna"]
    has_tools = not client.needs_tools or "tools" in puna["capabilities"]
    return has_tools and int(puna.get("context_length") or 0) >= client.context_min

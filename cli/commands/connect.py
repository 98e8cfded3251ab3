"""`puna connect`: set other programs up for this server, and check that their model is good enough.

The server's answers decide if a client can work with a model; `--fix` has it loaded so that it can.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from rich.console import Console

from cli.access import api_key_of
from cli.client_files import FileChange, file_path, planned_change, write_change
from cli.commands.doctor import print_finding
from cli.core.connect.checks import (
    Fit,
    ServedModel,
    check_context,
    check_key,
    check_model,
    check_trust,
    model_facts,
    needs_more,
    placed_where,
    trial_contexts,
    unseen,
    wanted_context,
)
from cli.core.connect.client import ConnectClient, Setting, Values, filled, output_tokens
from cli.core.connect.clients import CLIENTS, client_named
from cli.core.doctor.findings import Finding, has_failed, summary
from cli.core.server_address import CA_VARIABLE
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_listing
from cli.progress import load_reporter
from cli.server import Server
from cli.settings import CliSettings
from common.nearest import did_you_mean

# A model that was never measured is measured in several rounds, and each explanation waits for one.
_EXPLAIN_ROUNDS_MAX = 6
_HEADINGS = ("CLIENT", "NAME", "SPEAKS", "CONTEXT", "TOOLS", "SETTINGS")
_READ_SCOPE = "models:read"
_VISION = "vision"
# Stands for a key that is not printed.
_SHOWN_KEY = "your-key"


@dataclass(frozen=True, slots=True)
class _Written:
    """A setting's text, and what becomes of its file; no change: it is not a file, or is not to be written."""

    setting: Setting
    text: str
    change: FileChange | None
    trouble: str = ""


def list_clients(*, as_json: bool) -> None:
    """Print the table of clients."""
    rows = [
        (
            client.key,
            client.name,
            str(client.dialect),
            str(client.context) if client.context else "",
            "needed" if client.needs_tools else "",
            ", ".join(setting.path for setting in client.settings if setting.path),
        )
        for client in CLIENTS.values()
    ]
    answer = {"clients": [_row(client) for client in CLIENTS.values()]}
    print_listing(answer, _HEADINGS, rows, as_json=as_json, spare=("SPEAKS", "TOOLS"))


def connect(name: str, *, chosen: str | None, write: bool, fix: bool, as_json: bool) -> None:
    """Print what to set in a client, or write it, and what stands in its way.

    Raises:
        CommandFailed: the client or the model is unknown, a file cannot be changed, or a check fails.
    """
    try:
        client = client_named(name)
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from error
    settings = CliSettings.load()
    server, key = Server.of(settings), api_key_of(settings)
    whoami = _who_am_i(server)
    sees = _READ_SCOPE in (whoami.get("scopes") or ())
    model = chosen or _chosen_model(server, client, sees=sees)
    findings = [*check_trust(server.url, _authorities(settings)), *check_key(whoami, has_key=bool(key))]
    facts, fit = _inspected(server, client, model, fix=fix, as_json=as_json) if sees else (None, None)
    if facts is None:
        findings.append(unseen(model))
    else:
        findings += [*check_model(client, facts), *check_context(client, facts, fit)]
    secret = (key or "") if whoami.get("keys") else ""
    texts = _texts(client, _values(client, server.url, model, facts, fit, secret), secret, write=write)
    if as_json:
        _print_as_json(client, server.url, model, findings, texts)
    else:
        _print(client, model, findings, texts, is_chosen=bool(chosen), wrote=write)
    if trouble := "; ".join(one.trouble for one in texts if one.trouble):
        raise CommandFailed(trouble, ExitCode.FAILED)
    if has_failed(findings):
        raise CommandFailed(summary(findings), ExitCode.FAILED)


def _inspected(
    server: Server, client: ConnectClient, model: str, *, fix: bool, as_json: bool
) -> tuple[ServedModel, Fit | None]:
    """Return the model's facts, and what the cluster can hold if that is too little; with `fix`, after the change."""
    facts = _inspect_model(server, model)
    if not needs_more(client, facts) or facts.own:
        return facts, None
    fit = _largest_fit(server, client, facts)
    if not fix or fit.tokens <= facts.context:
        return facts, fit
    for line in _set_context(server, facts, fit.tokens, as_json=as_json):
        if not as_json:
            print(line)
    return _inspect_model(server, model), None


def _texts(client: ConnectClient, values: Values, secret: str, *, write: bool) -> list[_Written]:
    """Return the texts of a client, and write its files if that is asked for and all of them can be changed."""
    texts = [_prepared(setting, values, secret, write=write) for setting in client.settings]
    if any(one.trouble for one in texts):
        return [replace(one, change=None) for one in texts]
    for one in texts:
        if one.change is not None and one.change.lines:
            write_change(one.change, secret=secret)
    return texts


def _chosen_model(server: Server, client: ConnectClient, *, sees: bool) -> str:
    if not sees:
        raise CommandFailed(f"name a model with --model: the key lacks the scope {_READ_SCOPE}", ExitCode.USAGE)
    return _suitable_model(server, client)


def _authorities(settings: CliSettings) -> str:
    """Return the file of certificates that this command trusts the server by, beside those of the machine."""
    return os.environ.get(CA_VARIABLE) or (str(settings.tls_cert) if settings.tls_cert else "")


def _values(
    client: ConnectClient, url: str, model: str, facts: ServedModel | None, fit: Fit | None, secret: str
) -> Values:
    """Return what the texts are filled with: the context that the model has, or is to have."""
    if facts is None:
        context = client.context
    elif facts.context >= client.context_min:
        context = facts.context
    else:
        context = max(fit.tokens if fit is not None else 0, facts.context) or wanted_context(client, facts)
    capabilities = frozenset() if facts is None else facts.capabilities
    return Values(
        url=url,
        model=model,
        context=context,
        output=output_tokens(client, context),
        key=secret,
        tools=facts is None or "tools" in capabilities,
        images=_VISION in capabilities,
    )


def _prepared(setting: Setting, values: Values, secret: str, *, write: bool) -> _Written:
    """Return a text as it is shown, and the change of its file if one is to be written."""
    shown = filled(setting.text, values).replace(secret, _SHOWN_KEY) if secret else filled(setting.text, values)
    if not (write and setting.file):
        return _Written(setting, shown, None)
    path = file_path(setting, os.environ)
    try:
        return _Written(setting, shown, planned_change(setting, filled(setting.text, values), path))
    except CommandFailed as error:
        return _Written(setting, shown, None, str(error))


def _print(
    client: ConnectClient,
    model: str,
    findings: list[Finding],
    texts: list[_Written],
    *,
    is_chosen: bool,
    wrote: bool,
) -> None:
    hint = "" if is_chosen else "; --model names another"
    print(f"{client.name} with {model}{hint}\n")
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        print_finding(console, finding)
    for one in texts:
        for line in _lines(one, wrote=wrote):
            print(line)
    if client.start:
        print(f"\nstart it with `{client.start}`")
    if not wrote and any(one.setting.file for one in texts):
        print(f"`puna connect {client.key} --write` writes the files, and keeps what else they say")


def _lines(one: _Written, *, wrote: bool) -> Iterator[str]:
    if one.change is not None:
        if not one.change.lines:
            yield f"\n{one.change.path}: nothing to change"
            return
        kept = f"; as it was: {one.change.backup}" if one.change.before is not None else ""
        yield f"\n{one.change.path}: written{kept}"
        yield from (f"  {line}" for line in one.change.lines)
        return
    if one.text.strip():
        yield f"\n{one.setting.title}" + (" (not written)" if wrote and one.setting.file else "") + ":"
        yield from (f"  {line}".rstrip() for line in one.text.splitlines())


def _print_as_json(client: ConnectClient, url: str, model: str, findings: list[Finding], texts: list[_Written]) -> None:
    print_json(
        {
            "client": client.key,
            "url": url,
            "model": model,
            "ok": not has_failed(findings) and not any(one.trouble for one in texts),
            "findings": [asdict(one) for one in findings],
            "settings": [_setting(one) for one in texts if one.text.strip()],
            "start": client.start,
        }
    )


def _setting(one: _Written) -> dict[str, Any]:
    return {
        "title": one.setting.title,
        "format": str(one.setting.format),
        "text": one.text,
        "path": str(file_path(one.setting, os.environ)) if one.setting.file else None,
        "written": one.change is not None and bool(one.change.lines),
        "problem": one.trouble or None,
    }


def _row(client: ConnectClient) -> dict[str, Any]:
    return {
        "client": client.key,
        "name": client.name,
        "dialect": str(client.dialect),
        "context": client.context,
        "context_min": client.context_min,
        "needs_tools": client.needs_tools,
        "files": [setting.path for setting in client.settings if setting.path],
    }


def _who_am_i(server: Server) -> dict[str, Any]:
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


def _suitable_model(server: Server, client: ConnectClient) -> str:
    """Return the first model that the client can work with, loaded ones first; else the first that answers.

    Raises:
        CommandFailed: there is none that answers.
    """
    models = [one for one in server.get("/v1/models").get("data") or [] if _answers(one)]
    if not models:
        raise CommandFailed("there is no model that answers; `puna pull` fetches one", ExitCode.NOT_FOUND)
    return str(min(models, key=lambda one: (not _suits(one, client), one["puna"].get("state") != "ready"))["id"])


def _inspect_model(server: Server, name: str) -> ServedModel:
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
    return model_facts(shown, placements, _explain(server, name), name=name)


def _explain(server: Server, model: str, *, num_ctx: int | None = None) -> dict[str, Any]:
    """Return where a replica would go, once the model is measured."""
    query = urlencode({"model": model, **({} if num_ctx is None else {"num_ctx": num_ctx})})
    answer: dict[str, Any] = {}
    for _ in range(_EXPLAIN_ROUNDS_MAX):
        answer = server.get(f"/puna/v1/explain?{query}")
        if answer.get("outcome") != "measuring":
            break
    return answer


def _largest_fit(server: Server, client: ConnectClient, facts: ServedModel) -> Fit:
    """Return the largest context that the cluster can hold, up to the one that the client wants."""
    for tokens in trial_contexts(wanted_context(client, facts), facts.context):
        answer = _explain(server, facts.name, num_ctx=tokens)
        if answer.get("outcome") == "placed":
            return Fit(tokens=tokens, where=placed_where(answer))
    return Fit(tokens=0, where="")


def _set_context(server: Server, facts: ServedModel, tokens: int, *, as_json: bool) -> Iterator[str]:
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

"""`puna connect`: set other programs up for this server, and check that their model is good enough."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from cli.access import api_key_of
from cli.client_files import FileChange, file_path, planned_change, write_change
from cli.commands.doctor import print_finding
from cli.connecting import inspect_model, largest_fit, set_context, suitable_model, who_am_i
from cli.core.connect.checks import (
    Fit,
    ServedModel,
    check_context,
    check_key,
    check_model,
    check_trust,
    needs_more,
    unseen,
    wanted_context,
)
from cli.core.connect.client import ConnectClient, Setting, Values, filled, output_tokens
from cli.core.connect.clients import CLIENTS, client_named
from cli.core.doctor.findings import Finding, has_failed, summary
from cli.core.exit_codes import ExitCode
from cli.core.server_address import CA_VARIABLE
from cli.errors import CommandFailed
from cli.output import print_json, print_table
from cli.server import Server
from cli.settings import CliSettings

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
    if as_json:
        print_json({"clients": [_row(client) for client in CLIENTS.values()]})
        return
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
    print_table(_HEADINGS, rows, spare=("SPEAKS", "TOOLS"))


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
    whoami = who_am_i(server)
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
    facts = inspect_model(server, model)
    if not needs_more(client, facts) or facts.own:
        return facts, None
    fit = largest_fit(server, client, facts)
    if not fix or fit.tokens <= facts.context:
        return facts, fit
    for line in set_context(server, facts, fit.tokens, as_json=as_json):
        if not as_json:
            print(line)
    return inspect_model(server, model), None


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
    return suitable_model(server, client)


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

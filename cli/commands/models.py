"""`puna pull`, `create`, `show`, `rm` and `cp`."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from cli.core.exit_codes import ExitCode
from cli.core.modelfile import (
    ModelfileInvalid,
    create_body,
    looks_like_path,
    models_in,
    parse_modelfile,
    with_other_parts,
)
from cli.core.shown_model import sections
from cli.errors import CommandFailed
from cli.output import print_json, print_sections
from cli.progress import Report, store_reporter
from cli.server import Server
from cli.uploads import send_file
from common.modelfile import Modelfile

_FORBIDDEN_TEXT = (
    "forbidden: no node may fetch from that registry like this (PUNA_REGISTRIES of the nodes; plain HTTP needs"
    " --insecure), or the key lacks the scope models:write"
)
# Texts of POST /api/show that can be printed alone.
TEXTS = ("modelfile", "parameters", "template", "system", "license")


def pull(name: str, *, insecure: bool, as_json: bool) -> None:
    """Fetch a model."""
    news = Server.of().stream("/api/pull", {"model": name, "insecure": insecure})
    try:
        with closing(news), store_reporter(as_json=as_json) as report:
            for one in news:
                report(one)
    except KeyboardInterrupt:
        text = f"stopped; what has come stays, and `puna pull {name}` goes on from there"
        raise CommandFailed(text, ExitCode.INTERRUPTED) from None
    except CommandFailed as error:
        if error.code is not ExitCode.REFUSED or str(error) != "forbidden":
            raise
        # The dialect has only that word, for every cause.
        raise CommandFailed(_FORBIDDEN_TEXT, ExitCode.REFUSED) from error


def create(name: str, path: Path, *, as_json: bool) -> None:
    """Make a model of a Modelfile."""
    server = Server.of()
    try:
        modelfile = parse_modelfile(path.read_text(encoding="utf-8"))
        body = dict(create_body(name, modelfile))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise CommandFailed(f"{path} cannot be read: {reason}") from error
    except ModelfileInvalid as error:
        raise CommandFailed(f"{path}: {error}") from error
    try:
        with store_reporter(as_json=as_json) as report:
            body |= _origin(server, modelfile, path.parent, report)
            for one in server.stream("/api/create", body):
                report(one)
    except KeyboardInterrupt:
        text = "stopped; files that were sent whole stay for the next try"
        raise CommandFailed(text, ExitCode.INTERRUPTED) from None


def show(name: str, *, only: str | None, verbose: bool, as_json: bool) -> None:
    """Print the description of a model."""
    shown = Server.of().send("POST", "/api/show", {"model": name, "verbose": verbose})
    if as_json:
        print_json(shown)
    elif only is not None:
        text = str(shown.get(only) or "")
        sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
    else:
        print_sections(sections(name, shown))


def remove(names: list[str], *, as_json: bool) -> None:
    """Forget models; one that cannot be deleted does not keep the others.

    Raises:
        CommandFailed: the first that could not be deleted, after all were tried.
    """
    server = Server.of()
    deleted: list[str] = []
    first: CommandFailed | None = None
    for name in names:
        try:
            server.order("DELETE", "/api/delete", {"model": name})
        except CommandFailed as error:
            if error.code is ExitCode.UNREACHABLE:
                raise
            if first is None:
                first = error
            else:
                print(f"puna: {error}", file=sys.stderr)
            continue
        deleted.append(name)
        if not as_json:
            print(f"deleted {name}", flush=True)
    if as_json:
        print_json({"deleted": deleted})
    if first is not None:
        raise first


def copy(source: str, destination: str) -> None:
    """Give a model a second name."""
    Server.of().order("POST", "/api/copy", {"source": source, "destination": destination})
    print(f"copied {source} to {destination}")


def _origin(server: Server, modelfile: Modelfile, directory: Path, report: Report) -> dict[str, Any]:
    """`from`, or `files` and `adapters`, which the server has then."""
    files: dict[str, Path] = {}
    names: list[str] = []
    for source in modelfile.sources:
        found = _files(source, directory)
        files |= found
        if not found:
            names.append(source)
    if len(names) > 1 or (names and files):
        raise CommandFailed("FROM is either one model or files")
    adapters: dict[str, Path] = {}
    for adapter in modelfile.adapters:
        found = _files(adapter, directory)
        if not found:
            raise CommandFailed(f"ADAPTER {adapter}: there is no such file")
        adapters |= found
    body: dict[str, Any] = {"from": names[0]} if names else {}
    if files:
        body["files"] = {name: send_file(server, path, report) for name, path in files.items()}
    if adapters:
        body["adapters"] = {name: send_file(server, path, report) for name, path in adapters.items()}
    return body


def _files(source: str, directory: Path) -> dict[str, Path]:
    """Name and path of the files that a source means; none: it is the name of a model."""
    path = (directory / Path(source).expanduser()).resolve()
    try:
        if path.is_dir():
            names = models_in([one.name for one in path.iterdir()])
            if not names:
                raise CommandFailed(f"{source}: there is no GGUF file in it")
            return {name: path / name for name in names}
        if path.is_file():
            names = with_other_parts(path.name, [one.name for one in path.parent.iterdir()])
            return {name: path.parent / name for name in names}
    except (OSError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    if looks_like_path(source):
        raise CommandFailed(f"{source}: there is no such file")
    return {}

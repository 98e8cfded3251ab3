"""`puna create`: a model of a Modelfile, and of the files that it names, as far as the server lacks them."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.core.modelfile import (
    ModelfileInvalid,
    create_body,
    looks_like_path,
    models_in,
    parse_modelfile,
    with_other_parts,
)
from cli.core.news import short_digest
from cli.errors import CommandFailed, ExitCode
from cli.progress import Report, store_reporter
from cli.server import Server
from common.modelfile import Modelfile

_PIECE_BYTES = 1024 * 1024
_NEWS_EVERY_BYTES = 16 * _PIECE_BYTES


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


def send_file(server: Server, path: Path, report: Report) -> str:
    """Upload a file unless the server has it; return its digest.

    Raises:
        CommandFailed: the file cannot be read, or the server refuses it.
    """
    digest = f"sha256:{_digest(path, report)}"
    if server.has_blob(digest):
        report({"status": f"{path.name} is there already"})
        return digest
    size_bytes = path.stat().st_size
    text = f"sending {short_digest(digest)}"

    def counted() -> Iterator[bytes]:
        for done_bytes, piece in _pieces(path):
            _report(report, text, digest, done_bytes, size_bytes)
            yield piece
        report({"status": text, "digest": digest, "total": size_bytes, "completed": size_bytes})

    server.put_blob(digest, counted(), size_bytes)
    return digest


def _digest(path: Path, report: Report) -> str:
    sha256 = hashlib.sha256()
    try:
        size_bytes = path.stat().st_size
        for done_bytes, piece in _pieces(path):
            sha256.update(piece)
            _report(report, f"reading {path.name}", f"file:{path}", done_bytes + len(piece), size_bytes)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}") from error
    return sha256.hexdigest()


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each piece and how much came before it."""
    done_bytes = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield done_bytes, piece
            done_bytes += len(piece)


def _report(report: Report, text: str, key: str, done_bytes: int, total_bytes: int) -> None:
    if done_bytes == total_bytes or done_bytes % _NEWS_EVERY_BYTES < _PIECE_BYTES:
        report({"status": text, "digest": key, "total": total_bytes, "completed": done_bytes})

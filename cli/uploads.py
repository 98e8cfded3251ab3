"""Send files to a gateway: their digests first, then what it does not have."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cli.core.news import short_digest
from cli.errors import CommandFailed
from cli.progress import Report
from cli.server import Server

_PIECE_BYTES = 1024 * 1024
_NEWS_EVERY_BYTES = 16 * _PIECE_BYTES


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

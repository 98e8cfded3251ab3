"""Headers of GGUF files that lie on other nodes, in sparse files of the true size."""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from common.errors import BadModelFile, PunaError, RegistryFailed
from runner.core.model.gguf_check import HEADER_BYTES_MAX, BadGguf, header_length
from runner.core.store.manifest import Layer
from runner.host.registry.sources import BlobChangedError, PeerSource, describe

FIRST_BYTES = 4 * 1024 * 1024
GROWTH = 4
STALL_S = 10.0
FILES_MAX = 64


class HeaderFiles:
    """Kept in a directory of their own, by digest; the oldest go."""

    def __init__(self, directory: Path) -> None:
        """`directory` is made when something is written."""
        self._directory = directory
        self._turn = asyncio.Lock()  # two of the same would write one file

    async def of(self, layer: Layer, peers: Sequence[PeerSource]) -> Path:
        """Return a file that has the header of a blob, and the blob's size.

        Raises:
            BadModelFile: it is no GGUF.
            RegistryFailed: no peer has it, or none answers.
        """
        path = self._directory / f"{layer.digest}.gguf"
        async with self._turn:
            with contextlib.suppress(OSError):
                if path.stat().st_size == layer.size_bytes:
                    os.utime(path)
                    return path
            errors: dict[str, PunaError] = {}
            for peer in peers:
                try:
                    content = await _header(layer, peer)
                except (BlobChangedError, TimeoutError) as error:
                    errors[peer.name] = RegistryFailed(str(error) or "it does not answer")
                except PunaError as error:
                    if isinstance(error, BadModelFile):
                        raise
                    errors[peer.name] = error
                else:
                    await asyncio.to_thread(self._write, path, content, layer.size_bytes)
                    return path
        raise RegistryFailed(describe(layer.digest, errors))

    def _write(self, path: Path, content: bytes, size_bytes: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        kept = sorted(self._directory.glob("*.gguf"), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[: -FILES_MAX + 1]:
            old.unlink(missing_ok=True)
        temporary = path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(content)
            file.truncate(size_bytes)
        temporary.replace(path)


async def _header(layer: Layer, peer: PeerSource) -> bytes:
    """Return the first bytes, as many as the header has."""
    content = bytearray()
    wanted = FIRST_BYTES
    while True:
        stop = min(wanted, layer.size_bytes)
        if len(content) < stop:
            async with asyncio.timeout(STALL_S):
                start = len(content)
                async for chunk in peer.read(layer.digest, start=start, stop=stop, size=layer.size_bytes):
                    content += chunk
        try:
            length = await asyncio.to_thread(header_length, bytes(content))
        except BadGguf as error:
            raise BadModelFile(f"blob {layer.digest[:12]}: {error.message}") from error
        if length is not None:
            return bytes(content[:length])
        if stop >= min(layer.size_bytes, HEADER_BYTES_MAX):
            raise BadModelFile(f"blob {layer.digest[:12]}: its header does not end")
        wanted = min(wanted * GROWTH, HEADER_BYTES_MAX)

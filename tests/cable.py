"""A cable between two processes that can be held or cut while bytes are on it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cable:
    """Passes bytes on, whatever they are. `address` leads to `target`."""

    target: str
    address: str = ""
    received_bytes: int = 0  # what the target sent
    cuts_after: int = 0  # bytes from the target; then every connection breaks, and no other comes to be. 0: never
    is_cut: bool = False
    connections: set["asyncio.Task[None]"] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if self.is_cut:
            return
        host, _, port = self.target.partition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        try:
            there = asyncio.create_task(self._pass_on(reader, there_writer, counts=False))
            back = asyncio.create_task(self._pass_on(there_reader, writer, counts=True))
            try:
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (there, back):
                    task.cancel()
                await asyncio.gather(there, back, return_exceptions=True)
        finally:
            there_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(64 * 1024):
                if counts:
                    self.received_bytes += len(data)
                    if self.cuts_after and self.received_bytes >= self.cuts_after:
                        self.is_cut = True
                        for other in self.connections:
                            other.cancel()
                        return
                writer.write(data)
                await writer.drain()


@contextlib.asynccontextmanager
async def cable(target: str) -> AsyncIterator[Cable]:
    """A cable to `target`, "host:port"."""
    made = Cable(target)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        made.connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await made.serve(reader, writer)
        finally:
            writer.transport.abort()
            made.connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in list(made.connections):
            task.cancel()
        await asyncio.gather(*made.connections, return_exceptions=True)

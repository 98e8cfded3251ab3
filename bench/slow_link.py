"""A relay to a TCP server whose bytes arrive late, in a process of its own: a link of a known round trip.

    python -m bench.slow_link HOST:PORT --round-trip-ms 10

Prints the address that it listens on. Bandwidth is not limited: each read is passed on a fixed time after it came.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

from bench.machine import ROOT

_CHUNK_BYTES = 1024 * 1024
_CHUNKS_MAX = 256  # on the way at a time


async def _late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass on what comes, `delay_s` later."""
    loop = asyncio.get_running_loop()
    chunks = asyncio.Queue[tuple[float, bytes]](_CHUNKS_MAX)

    async def receive() -> None:
        data = b"-"
        while data:
            data = await reader.read(_CHUNK_BYTES)
            await chunks.put((loop.time() + delay_s, data))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            due_s, data = await chunks.get()
            await asyncio.sleep(due_s - loop.time())
            if not data:
                return
            writer.write(data)
            await writer.drain()
    finally:
        receiving.cancel()
        writer.close()


async def relay(target: str, *, round_trip_ms: float) -> None:
    """Relay until the process ends."""
    host, _, port = target.partition(":")
    delay_s = round_trip_ms / 2000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(_late(reader, there_writer, delay_s), _late(there_reader, writer, delay_s))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def slow_link(target: str, *, round_trip_ms: float) -> Iterator[str]:
    """Run a relay to `target`, "host:port"; yields its address."""
    command = [sys.executable, "-m", "bench.slow_link", target, "--round-trip-ms", str(round_trip_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    """Parse the command line and relay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--round-trip-ms", type=float, default=10.0)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(relay(options.target, round_trip_ms=options.round_trip_ms))


if __name__ == "__main__":
    main()

"""A server of chat completions that costs next to nothing, for proxies that speak HTTP to what is behind them.

    python -m bench.gateway.canned_openai PORT

As `bench.gateway.canned`, the prompt says how many tokens the streamed answer has; all come at once, an event each.
"""

import asyncio
import re
import sys

import orjson

from bench.gateway.canned import TEXT

_NUMBERS = re.compile(rb"answer=(\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    event = {
        "id": "chatcmpl-canned",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "canned",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    data = b"data: " + orjson.dumps(event) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


_TOKEN = _chunk({"content": TEXT})
_FIRST = _chunk({"role": "assistant", "content": ""})
_LAST = _chunk({}, "length") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def _serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1])) if length else b""
            found = _NUMBERS.search(body)
            writer.write(_HEAD + _FIRST)
            for _ in range(int(found[1]) if found else 1):
                writer.write(_TOKEN)
            writer.write(_LAST)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def serve(port: int) -> None:
    """Until killed."""
    server = await asyncio.start_server(_serve_client, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))

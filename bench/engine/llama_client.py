"""llama-server's own HTTP interface over plain sockets: while a stream runs, bytes are only stored."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bench.engine.arrivals import Arrivals
from bench.engine.streams import Ask, BadAnswer, TokenStream, Vectors

_HEAD_END = b"\r\n\r\n"
_EVENT_END = b"\n\n"


class LlamaServerConnection:
    """A connection for each request, as HTTP/1.1 wants it."""

    def __init__(self, host: str, port: int, *, deadline_s: float) -> None:
        self._host, self._port = host, port
        self._deadline_s = deadline_s

    async def generate(self, asks: Sequence[Ask]) -> list[TokenStream]:
        """All at once, every connection made before the first request is sent; the answers in their order.

        Raises:
            BadAnswer: a stream had an error or no end.
        """
        answers = await self._post("/completion", [_completion_body(ask) for ask in asks])
        return [_token_stream(sent_s, arrivals) for sent_s, arrivals in answers]

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One request with many inputs.

        Raises:
            BadAnswer: there is not one vector for each input.
        """
        body = {"input": [list(ids) for ids in inputs], "embd_normalize": -1}
        ((sent_s, arrivals),) = await self._post("/embeddings", [body])
        answer = json.loads(b"".join(piece for piece, _ in _body_pieces(arrivals.data)))
        if not isinstance(answer, list) or len(answer) != len(inputs):
            raise BadAnswer(f"llama-server gave no vectors: {str(answer)[:200]}")
        rows = [entry["embedding"][0] for entry in sorted(answer, key=lambda entry: entry["index"])]
        return Vectors(
            sent_s=sent_s,
            end_s=arrivals.last_s,
            prompt_tokens=sum(len(ids) for ids in inputs),
            vectors=tuple(tuple(row) for row in rows),
        )

    async def _post(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[tuple[float, Arrivals]]:
        requests = [_request(self._host, self._port, path, body) for body in bodies]
        loop = asyncio.get_running_loop()
        made = await asyncio.gather(*(loop.create_connection(Arrivals, self._host, self._port) for _ in requests))
        sent = []
        for (transport, _), request in zip(made, requests, strict=True):
            sent.append(time.perf_counter())
            transport.write(request)
        try:
            async with asyncio.timeout(self._deadline_s):
                for _, arrivals in made:
                    await arrivals.closed.wait()
        except TimeoutError as error:
            raise BadAnswer(f"llama-server did not end within {self._deadline_s:.0f} s") from error
        return [(sent_s, arrivals) for sent_s, (_, arrivals) in zip(sent, made, strict=True)]


def _request(host: str, port: int, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _completion_body(ask: Ask) -> dict[str, Any]:
    body = {
        "prompt": list(ask.prompt),
        "n_predict": ask.tokens,
        "ignore_eos": True,
        "stream": True,
        "return_tokens": True,
        "temperature": ask.temperature,
        "top_k": ask.top_k,
        "top_p": ask.top_p,
        "min_p": ask.min_p,
        "seed": ask.seed,
    }
    return body | {"grammar": ask.grammar} if ask.grammar else body


def _token_stream(sent_s: float, arrivals: Arrivals) -> TokenStream:
    times_s: list[float] = []
    ids: list[int] = []
    text: list[str] = []
    final: dict[str, Any] | None = None
    for event, end in _events(arrivals.data):
        if "error" in event:
            raise BadAnswer(f"error in a stream of llama-server: {event['error']}")
        tokens = event.get("tokens") or []
        ids += tokens
        times_s += [arrivals.time_s(end)] * len(tokens)
        text.append(event.get("content") or "")
        if event.get("stop"):
            final = event
    if final is None or not times_s:
        raise BadAnswer(f"a stream of llama-server had no tokens or no end: {bytes(arrivals.data[:300])!r}")
    return TokenStream(
        sent_s=sent_s,
        token_times_s=tuple(times_s),
        end_s=arrivals.last_s,
        prompt_tokens=final["tokens_evaluated"],
        cached_tokens=final["timings"].get("cache_n", 0),
        generated_tokens=final["tokens_predicted"],
        token_ids=tuple(ids),
        text="".join(text),
    )


def _events(data: bytes | bytearray) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the JSON of each server-sent event, and the end in `data` of the piece that completed it."""
    pending = b""
    for piece, end in _body_pieces(data):
        pending += piece
        *complete, pending = pending.split(_EVENT_END)
        for block in complete:
            payload = block.removeprefix(b"data:").strip()
            # A line that begins with a colon is a comment: it keeps the connection alive during a long prompt.
            if payload and payload != b"[DONE]" and not payload.startswith(b":"):
                yield json.loads(payload), end


def _body_pieces(data: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    """Yield the chunks of an HTTP body, each with the offset of its end.

    Raises:
        BadAnswer: another status than 200.
    """
    head_end = data.find(_HEAD_END)
    head = bytes(data[: max(0, head_end)]).lower()
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise BadAnswer(bytes(data[:500]).decode(errors="replace"))
    position = head_end + len(_HEAD_END)
    if b"transfer-encoding: chunked" not in head:
        yield bytes(data[position:]), len(data)
        return
    while (line_end := data.find(b"\r\n", position)) >= 0:
        size = int(bytes(data[position:line_end]).split(b";")[0] or b"0", 16)
        if size == 0:
            return
        start = line_end + 2
        yield bytes(data[start : start + size]), start + size
        position = start + size + 2

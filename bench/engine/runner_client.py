"""Our runner's gRPC over one plain socket: while streams run, bytes are only stored."""

import asyncio
import time
from collections.abc import Sequence
from typing import Self

from bench.engine import http2
from bench.engine.arrivals import Arrivals
from bench.engine.streams import Ask, BadAnswer, TokenStream, Vectors
from protos import runner_pb2

_GENERATE, _EMBED = "/puna.v1.Runner/Generate", "/puna.v1.Runner/Embed"


class RunnerConnection:
    """One connection that carries every call, as a gRPC channel does."""

    def __init__(self, host: str, port: int, *, deadline_s: float) -> None:
        self._host, self._port = host, port
        self._deadline_s = deadline_s
        self._arrivals = Arrivals(self._answer)
        self._scanned = 0
        self._frames: list[http2.Frame] = []
        self._open: set[int] = set()
        self._greeted = asyncio.Event()
        self._done = asyncio.Event()
        self._next_stream = 1

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().create_connection(lambda: self._arrivals, self._host, self._port)
        self._write(http2.hello())
        # As every gRPC client does: a call that is sent together with the greeting may never be read.
        async with asyncio.timeout(self._deadline_s):
            await self._greeted.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._arrivals.transport is not None
        self._arrivals.transport.close()
        await self._arrivals.closed.wait()

    async def generate(self, asks: Sequence[Ask]) -> list[TokenStream]:
        """All at once; the answers in their order.

        Raises:
            BadAnswer: a call ended without its final event, or not in time.
        """
        sent, streams = await self._call(_GENERATE, [_generate_request(ask).SerializeToString() for ask in asks])
        return [self._token_stream(stream, sent_s) for stream, sent_s in zip(streams, sent, strict=True)]

    async def embed(self, inputs: Sequence[Sequence[int]]) -> Vectors:
        """One request with many inputs.

        Raises:
            BadAnswer: as `generate`.
        """
        request = runner_pb2.EmbedRequest(
            inputs=[
                runner_pb2.EmbedInput(segments=[runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=ids))])
                for ids in inputs
            ]
        )
        (sent_s,), (stream,) = await self._call(_EMBED, [request.SerializeToString()])
        answers = http2.messages(self._frames, stream)
        if len(answers) != 1:
            raise BadAnswer("the runner gave no vectors")
        ((message, end),) = answers
        response = runner_pb2.EmbedResponse.FromString(message)
        return Vectors(
            sent_s=sent_s,
            end_s=self._arrivals.time_s(end),
            prompt_tokens=sum(entry.prompt_tokens for entry in response.embeddings),
            vectors=tuple(tuple(entry.vector) for entry in response.embeddings),
        )

    async def _call(self, path: str, requests: Sequence[bytes]) -> tuple[list[float], list[int]]:
        streams = list(range(self._next_stream, self._next_stream + 2 * len(requests), 2))
        self._next_stream += 2 * len(requests)
        self._open, self._done = set(streams), asyncio.Event()
        authority = f"{self._host}:{self._port}"
        sent = []
        for stream, request in zip(streams, requests, strict=True):
            calls = http2.call(stream, authority=authority, path=path, message=request)
            sent.append(time.perf_counter())
            self._write(calls)
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._done.wait()
        except TimeoutError as error:
            raise BadAnswer(f"the runner did not end within {self._deadline_s:.0f} s") from error
        return sent, streams

    def _write(self, data: bytes) -> None:
        assert self._arrivals.transport is not None
        self._arrivals.transport.write(data)

    def _answer(self, arrivals: Arrivals) -> None:
        """Find the frames in what came, answer those that want one, and note ended streams."""
        for received in http2.whole_frames(arrivals.data, self._scanned):
            self._scanned = received.end
            self._frames.append(received)
            if answer := http2.answer_to(received):
                self._write(answer)
            elif received.kind == http2.SETTINGS:  # the server has read ours
                self._greeted.set()
            if received.ends_stream:
                self._open.discard(received.stream)
        if not self._open:
            self._done.set()

    def _token_stream(self, stream: int, sent_s: float) -> TokenStream:
        times_s: list[float] = []
        ids: list[int] = []
        text: list[str] = []
        final: runner_pb2.Final | None = None
        end_s = sent_s
        for message, end in http2.messages(self._frames, stream):
            event = runner_pb2.GenerateEvent.FromString(message)
            end_s = self._arrivals.time_s(end)
            if event.HasField("tokens"):
                ids += [token.id for token in event.tokens.tokens]
                times_s += [end_s] * len(event.tokens.tokens)
                text.append(event.tokens.text)
            elif event.HasField("final"):
                final = event.final
        if final is None or not times_s:
            raise BadAnswer("a stream of the runner had no tokens or no end")
        return TokenStream(
            sent_s=sent_s,
            token_times_s=tuple(times_s),
            end_s=end_s,
            prompt_tokens=final.prompt_tokens,
            cached_tokens=final.cached_tokens,
            generated_tokens=final.generated_tokens,
            token_ids=tuple(ids),
            text="".join(text),
        )


def _generate_request(ask: Ask) -> runner_pb2.GenerateRequest:
    request = runner_pb2.GenerateRequest(
        prompt=[runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=ask.prompt))],
        sampling=runner_pb2.Sampling(
            temperature=ask.temperature,
            top_k=ask.top_k,
            top_p=ask.top_p,
            min_p=ask.min_p,
            seed=ask.seed,
        ),
        max_tokens=ask.tokens,
        ignore_eos=True,
    )
    if ask.grammar:
        request.grammar = ask.grammar
    return request

"""The Runner service: protos in and out, everything else elsewhere."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from grpc import aio

from common.clock import NS_PER_MS, NS_PER_S
from common.closing import closing
from common.errors import InvalidRequest, ModelLoading, PlacementMismatch, UnsupportedCapability
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from common.telemetry.tracing import Span
from common.trust.certificates import BadCertificate, KeyPair
from common.trust.identity import HeldIdentity
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner import metrics
from runner.core.sequence.requests import TokenizedPrompt
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.text_stream import Release, check_stop_strings
from runner.engine.contract.engine import Engine, Paused, Progressed, SequenceTimes
from runner.serve.constraints import ConstraintReader
from runner.serve.converters import request_from_proto, write_token
from runner.serve.embedding_servicer import NO_EMBEDDINGS, NO_RANKING, PooledService
from runner.serve.multiplexed_call import MultiplexedCall
from runner.serve.prompts import check_ids, name_sequence, tokenize_prompt
from runner.serve.status import StatusBoard
from runner.serve.streams import Finished, ProbationPlace, Stream, StreamEvent, StreamTable

log = get_logger()

# Tokenizing less text than this takes less time than a thread switch.
INLINE_TEXT_BYTES = 2048

Read = TypeVar("Read")
Admitted = runner_pb2.GenerateRequest | runner_pb2.EmbedRequest | runner_pb2.RerankRequest
Placed = Admitted | runner_pb2.ProbationRequest | runner_pb2.UseThreadsRequest


class RunnerServicer(runner_pb2_grpc.RunnerServicer):
    """One loaded model."""

    def __init__(
        self,
        engine: Engine,
        streams: StreamTable,
        board: StatusBoard,
        info: runner_pb2.RunnerInfo,
        pooled: PooledService | None = None,
    ) -> None:
        """`info` is completed once the model is loaded; `pooled` answers for models with pooling."""
        self._engine = engine
        self._pooled = pooled
        self._streams = streams
        self._board = board
        self.info = info
        self.identity: HeldIdentity | None = None  # none on Unix sockets
        self.constraints = ConstraintReader()
        self._probation = ProbationPlace()

    async def Generate(
        self, request: runner_pb2.GenerateRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Stream one sequence."""
        async with self._sequence(request) as stream:
            async for event in stream.events():
                message = runner_pb2.GenerateEvent()
                self._write(stream, event, message)
                yield message
                self._streams.drained(stream)

    async def Multiplex(
        self, request: AsyncIterator[runner_pb2.SequenceCommand], context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[runner_pb2.StepEvents]:
        """Stream many sequences of one caller."""
        call = MultiplexedCall(self._sequence, self._write, self._streams)
        async with closing(call.run(request)) as messages:
            async for message in messages:
                yield message

    async def Probation(
        self, request: runner_pb2.ProbationRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[runner_pb2.ProbationGranted]:
        """Hold the place of the only request on probation."""
        self._check_placement(request)
        self._board.check_accepting()
        async with closing(self._probation.hold()) as grants:
            async for granted in grants:
                yield granted

    @asynccontextmanager
    async def _sequence(self, request: runner_pb2.GenerateRequest) -> AsyncIterator[Stream]:
        """Open the stream of a request; leaving frees its slot and accounts for it.

        Raises:
            PunaError: the request is refused.
        """
        attributes = {"puna.placement": self.info.placement.placement_id}
        with tracing.begin("generate", attributes, kind=tracing.SpanKind.SERVER) as span:
            self._admit(request)
            stops = check_stop_strings(request.stop)
            prompt, names = await self._read(request)
            constraints = await self.constraints.read(request, self._engine.vocabulary)
            # Another caller may have taken the last place while this one tokenized.
            self._board.check_accepting()
            generation = request_from_proto(request, prompt, constraints, names)
            self._board.named(size_bytes=names.size_bytes, tokens=len(prompt.inputs))
            stream = self._streams.open(generation, stops=stops, visible=frozenset(request.visible_token_ids))
            self._streams.held.note(stream.id, names)
            is_error = False
            try:
                yield stream
            except Exception:
                is_error = True
                raise
            finally:
                self._streams.close(stream)
                self._account(stream, span, is_error=is_error)

    async def Embed(
        self, request: runner_pb2.EmbedRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.EmbedResponse:
        """Return a vector for each input."""
        self._admit(request)
        if self._pooled is None:
            raise UnsupportedCapability(NO_EMBEDDINGS)
        return await self._pooled.embed(request)

    async def Rerank(
        self, request: runner_pb2.RerankRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.RerankResponse:
        """Return a score for each document."""
        self._admit(request)
        if self._pooled is None:
            raise UnsupportedCapability(NO_RANKING)
        return await self._pooled.rerank(request)

    async def Tokenize(
        self, request: runner_pb2.TokenizeRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.TokenizeResponse:
        """Text to ids, as Generate reads it."""
        self._board.check_accepting()
        prompt = await _beside_loop(request.segments, partial(self._tokenize, request.segments, request.add_bos))
        ids = prompt.token_ids
        pieces = self._engine.vocabulary.pieces
        return runner_pb2.TokenizeResponse(
            ids=ids, pieces=[pieces[token_id] for token_id in ids], media_rows=len(prompt.inputs) - len(ids)
        )

    async def Detokenize(
        self, request: runner_pb2.DetokenizeRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.DetokenizeResponse:
        """Ids to bytes."""
        self._board.check_accepting()
        check_ids(request.ids, self._engine.vocabulary)
        return runner_pb2.DetokenizeResponse(text=self._engine.vocabulary.detokenize(list(request.ids)))

    async def GetInfo(
        self, request: runner_pb2.GetInfoRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.RunnerInfo:
        """Return the identity of this runner, and its loaded model."""
        return self.info

    async def WatchLoad(
        self, request: runner_pb2.WatchLoadRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[cluster_pb2.RunnerStatus]:
        """Status now and on every change."""
        held, known_version = self._streams.held, -1
        async for status in self._board.watch():
            if not request.held_prefixes:
                yield status
                continue
            whole, known_version = held.completed(status, known_version=known_version), held.version
            yield whole

    async def UseThreads(
        self, request: runner_pb2.UseThreadsRequest, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.UseThreadsResponse:
        """Change how many threads compute."""
        self._check_placement(request)
        threads = self._board.threads
        if not threads.now:
            raise ModelLoading("the model is still loading", retry_after_s=1.0)
        used = threads.use(request.threads)
        self._board.changed()
        return runner_pb2.UseThreadsResponse(threads=used)

    async def UseIdentity(
        self, request: runner_pb2.RunnerIdentity, context: aio.ServicerContext[Any, Any]
    ) -> runner_pb2.UseIdentityResponse:
        """Show another certificate from now on."""
        if self.identity is None:
            raise InvalidRequest("this runner shows no certificate; it listens on a Unix socket")
        try:
            self.identity.replace(request.authorities, KeyPair(request.certificate, request.key))
        except BadCertificate as error:
            raise InvalidRequest(str(error), param="certificate") from error
        return runner_pb2.UseIdentityResponse()

    def _admit(self, request: Admitted) -> None:
        """Refuse what is not for this runner or comes at the wrong time, and note that it was used."""
        self._check_placement(request)
        self._board.check_accepting()
        self._board.used()
        if request.HasField("keep_alive_ms"):
            self._board.note_keep_alive(request.keep_alive_ms)

    def _check_placement(self, request: Placed) -> None:
        if not request.HasField("placement"):
            return
        asked, own = request.placement, self.info.placement
        other_life = asked.incarnation and asked.incarnation != own.incarnation
        if (asked.placement_id, asked.generation) != (own.placement_id, own.generation) or other_life:
            raise PlacementMismatch("another placement runs here")

    async def _read(self, request: runner_pb2.GenerateRequest) -> tuple[TokenizedPrompt, SequenceNames]:
        """Tokenize a prompt and name its beginnings."""

        def read() -> tuple[TokenizedPrompt, SequenceNames]:
            prompt = self._tokenize(request.prompt, request.add_bos, request.cache_salt)
            names = name_sequence(request.prompt, prompt, self._engine.vocabulary, salt=request.cache_salt)
            return prompt, names

        return await _beside_loop(request.prompt, read)

    def _tokenize(self, segments: Any, add_bos: bool, salt: str = "") -> TokenizedPrompt:
        return tokenize_prompt(
            segments,
            add_bos=add_bos,
            vocabulary=self._engine.vocabulary,
            read_image=lambda data: self._engine.read_image(data).salted(salt),
        )

    def _write(self, stream: Stream, event: StreamEvent, message: runner_pb2.GenerateEvent) -> None:
        """Write an event into an empty message, in place: a message that is put into another one is copied."""
        match event:
            case Release():
                pieces = self._engine.vocabulary.pieces
                chunk = message.tokens
                chunk.text = event.text
                if stream.prompt is not None:
                    _write_progress(stream.prompt, chunk.prompt)
                    stream.prompt = None
                for token in event.tokens:
                    write_token(token, pieces, chunk.tokens.add())
            case Progressed():
                _write_progress(event, message.prompt)
            case Paused():
                message.paused.SetInParent()
            case Finished():
                times = event.times
                if times is not None:
                    self._board.evaluated(times, answer_tokens=event.generated_tokens)
                message.final.CopyFrom(_final(event))

    def _account(self, stream: Stream, span: tracing.Span, *, is_error: bool) -> None:
        """Metrics, spans, and the one line that each request leaves in the log; never a prompt."""
        ending = stream.finished.ending if stream.finished is not None else None
        outcome = "error" if is_error else ending.reason.value if ending is not None else "cancelled"
        metrics.REQUESTS.labels(reason=outcome).inc()
        times = stream.times
        if times is not None:
            metrics.CACHED_TOKENS.inc(times.cached_tokens)
            metrics.PREFIX_REQUESTS.labels("hit" if times.cached_tokens else "miss").inc()
            metrics.REQUEST_QUEUE_S.observe(times.queue_ns / NS_PER_S)
            metrics.REQUEST_PROMPT_S.observe(times.prompt_ns / NS_PER_S)
            metrics.REQUEST_GENERATE_S.observe(times.generate_ns / NS_PER_S)
            _trace_times(span, times, outcome=outcome, generated_tokens=stream.text.counted)
        log.info(
            "request.done",
            reason=outcome,
            cut_by=ending.cut_by.value if ending is not None and ending.cut_by is not None else "",
            prompt_tokens=times.prompt_tokens if times is not None else len(stream.request.prompt.inputs),
            cached_tokens=times.cached_tokens if times is not None else 0,
            evaluated_tokens=times.evaluated_tokens if times is not None else 0,
            generated_tokens=stream.text.counted,
            queue_ms=_ms(times.queue_ns) if times is not None else None,
            prompt_ms=_ms(times.prompt_ns) if times is not None else None,
            generate_ms=_ms(times.generate_ns) if times is not None else None,
            slot=times.slot_id if times is not None else None,
        )


async def _beside_loop(segments: Any, read: Callable[[], Read]) -> Read:
    """Read a prompt, a long one in a thread."""
    size_bytes = sum(len(segment.text) + len(segment.literal) + len(segment.media.data) for segment in segments)
    return read() if size_bytes <= INLINE_TEXT_BYTES else await asyncio.to_thread(read)


def _write_progress(event: Progressed, progress: runner_pb2.PromptProgress) -> None:
    progress.done_tokens = event.done_tokens
    progress.total_tokens = event.total_tokens
    progress.cached_tokens = event.cached_tokens


def _final(finished: Finished) -> runner_pb2.Final:
    times = finished.times
    ending = finished.ending
    final = runner_pb2.Final(
        reason=runner_pb2.DoneReason.Value(f"DONE_REASON_{ending.reason.name}"),
        stop_string=ending.stop_string,
        generated_tokens=finished.generated_tokens,
        cut_by=runner_pb2.CutBy.Value(f"CUT_BY_{ending.cut_by.name if ending.cut_by else 'UNSPECIFIED'}"),
    )
    if times is not None:
        final.prompt_tokens = times.prompt_tokens
        final.cached_tokens = times.cached_tokens
        final.prompt_duration_ns = times.prompt_ns
        final.generate_duration_ns = times.generate_ns
        final.queue_duration_ns = times.queue_ns
    return final


def _ms(duration_ns: int) -> float:
    return round(duration_ns / NS_PER_MS, 3)


def _trace_times(span: Span, times: SequenceTimes, *, outcome: str, generated_tokens: int) -> None:
    """Add prompt and answer as parts of the request's span, which ends about now."""
    span.set(
        {
            "puna.outcome": outcome,
            "puna.slot": times.slot_id,
            "puna.queue_seconds": times.queue_ns / NS_PER_S,
            "puna.cached_tokens": times.cached_tokens,
            "gen_ai.usage.input_tokens": times.prompt_tokens,
            "gen_ai.usage.output_tokens": generated_tokens,
        }
    )
    end = time.time_ns()
    first_token = end - times.generate_ns
    span.part(
        "prompt",
        start_unix_ns=first_token - times.prompt_ns,
        end_unix_ns=first_token,
        attributes={"puna.tokens": times.evaluated_tokens},
    )
    span.part("decode", start_unix_ns=first_token, end_unix_ns=end, attributes={"puna.tokens": generated_tokens})

"""A runner as other services call it. Domain errors come out, gRPC ones do not."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Self

import grpc

from common.errors import InternalError
from common.grpc.client import ask, call_metadata, open_channel
from common.grpc.errors import domain_errors, received
from common.trust.identity import own_identity
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from runner.multiplexer import READ_AHEAD, REQUEST_BYTES_MAX, Multiplexer

CALL_TIMEOUT_S = 30.0


class RunnerClient:
    """One channel to one runner; any number of calls at the same time."""

    multiplexes = False  # until the runner has said so (RunnerStatus.multiplexes)

    def __init__(self, address: str, peer: str = "") -> None:
        """`address` is the runner's gRPC target; connects with the first call. `peer`: as `runner_peer` returns it."""
        self.address = address
        self._channel = open_channel(address, peer, READ_AHEAD)
        self._stub = runner_pb2_grpc.RunnerStub(self._channel)
        self._multiplexer = Multiplexer(self._stub.Multiplex, own_identity())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every call and the channel."""
        await self._multiplexer.close()
        await self._channel.close()

    def generate(
        self,
        request: runner_pb2.GenerateRequest,
        *,
        timeout_s: float | None = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Iterate over the events of one sequence. Closing the iterator cancels the sequence and frees the slot.

        `on_sent` is called once the request is on the way to the runner.

        Raises:
            PunaError: as the runner raised it; ModelUnavailable if it cannot be reached or died.
        """
        if self.multiplexes and request.ByteSize() <= REQUEST_BYTES_MAX:
            return self._multiplexer.generate(request, timeout_s, on_sent)
        on_sent()
        return self._generate_alone(request, timeout_s)

    async def _generate_alone(
        self, request: runner_pb2.GenerateRequest, timeout_s: float | None
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Generate over a call of its own: for runners of earlier builds, and for large requests."""
        call = self._stub.Generate(request, timeout=timeout_s, metadata=call_metadata())
        events: Any = aiter(call)
        try:
            with domain_errors():
                async for event in events:  # not through `received`: each generator on the way costs every token
                    yield event
        finally:
            call.cancel()
            await events.aclose()  # else the event loop does it, in a task of its own

    async def probation(
        self, request: runner_pb2.ProbationRequest, *, timeout_s: float | None = None
    ) -> AsyncIterator[runner_pb2.ProbationGranted]:
        """Yield once the caller's request is the only one on probation, until the iterator is closed.

        A runner of an earlier build has no such place, and grants it at once.

        Raises:
            PunaError: as the runner raised it; ModelUnavailable if it cannot be reached or died.
        """
        call = self._stub.Probation(request, timeout=timeout_s, metadata=call_metadata())
        try:
            with domain_errors():
                async for granted in call:
                    yield granted
        except InternalError:
            if await call.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            yield runner_pb2.ProbationGranted()
        finally:
            call.cancel()

    async def embed(
        self, request: runner_pb2.EmbedRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.EmbedResponse:
        """Return a vector for each input. Cancelling drops what is not computed yet.

        Raises:
            PunaError: as the runner raised it; ModelUnavailable if it cannot be reached or died.
        """
        return await ask(self._stub.Embed, request, timeout_s=timeout_s)

    async def rerank(
        self, request: runner_pb2.RerankRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.RerankResponse:
        """Return a raw score for each document; as `embed`."""
        return await ask(self._stub.Rerank, request, timeout_s=timeout_s)

    async def tokenize(self, request: runner_pb2.TokenizeRequest) -> runner_pb2.TokenizeResponse:
        """Text to token ids; raises as `embed`."""
        return await ask(self._stub.Tokenize, request, timeout_s=CALL_TIMEOUT_S)

    async def detokenize(self, ids: list[int]) -> bytes:
        """Token ids to bytes; raises as `embed`."""
        request = runner_pb2.DetokenizeRequest(ids=ids)
        return (await ask(self._stub.Detokenize, request, timeout_s=CALL_TIMEOUT_S)).text

    async def info(self, *, timeout_s: float = CALL_TIMEOUT_S) -> runner_pb2.RunnerInfo:
        """Return the loaded model and its layout; raises as `embed`."""
        return await ask(self._stub.GetInfo, runner_pb2.GetInfoRequest(), timeout_s=timeout_s)

    def watch_load(
        self, *, held_prefixes: bool = False, timeout_s: float | None = None
    ) -> AsyncGenerator[cluster_pb2.RunnerStatus, None]:
        """Iterate over the status, on connect and on every change; ends after an error status.

        `held_prefixes`: with the names of the prompts that are held.

        Raises:
            PunaError: the runner cannot be reached or died.
        """
        request = runner_pb2.WatchLoadRequest(held_prefixes=held_prefixes)
        return received(self._stub.WatchLoad(request, timeout=timeout_s, metadata=call_metadata()))

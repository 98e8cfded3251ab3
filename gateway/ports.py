"""Interfaces of schedulers and runners that the gateway uses (clients: `scheduler.client`, `runner.client`)."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from common.errors import ModelUnavailable
from common.telemetry.logs import get_logger
from protos import cluster_pb2, discovery_pb2, runner_pb2, scheduler_pb2

log = get_logger()

Answer = TypeVar("Answer")


class SchedulerPort(Protocol):
    """The scheduler's client. Every method raises domain errors only."""

    def ensure_model(self, request: scheduler_pb2.EnsureModelRequest) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Load a model; the last event is `ready`."""

    def watch_routes(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Yield routing tables for ever; reconnect as needed."""

    async def unload_model(self, name: str) -> int:
        """Stop the idle replicas of a model; return how many will stop."""

    async def list_nodes(self) -> discovery_pb2.Inventory:
        """Return the inventory."""

    async def list_constraints(self, name: str = "") -> list[scheduler_pb2.ModelConstraints]:
        """Return the constraints of one model, or of every model that has some."""

    async def put_constraints(self, model: scheduler_pb2.ModelConstraints) -> scheduler_pb2.ModelConstraints:
        """Set what is wanted of a model."""

    async def remove_constraints(self, name: str) -> bool:
        """Forget it; whether something was set."""

    async def explain(self, request: scheduler_pb2.ExplainRequest) -> scheduler_pb2.Explanation:
        """Explain the placement of a model: the one that it has, or would get."""

    async def clear_device(self, device: str) -> scheduler_pb2.ClearDeviceResponse:
        """Have an excluded device tested again."""

    async def drain(self, node_id: str, *, budget_s: float | None = None) -> int:
        """Take a node out of use; how many replicas are still there."""

    async def undrain(self, node_id: str) -> None:
        """Put it into use again."""

    async def put_alias(self, name: str, target: str) -> scheduler_pb2.Alias:
        """Give a model a second name."""

    async def remove_alias(self, name: str) -> bool:
        """Forget it; whether there was one."""

    async def report_queues(self, request: scheduler_pb2.ReportQueuesRequest) -> None:
        """Report the wait for slots at this gateway."""


class RunnerPort(Protocol):
    """The client of one runner. Every method raises domain errors only."""

    def generate(
        self, request: runner_pb2.GenerateRequest, *, timeout_s: float | None = None
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Yield the events of one answer; leaving the iteration cancels it."""

    async def embed(
        self, request: runner_pb2.EmbedRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.EmbedResponse:
        """Return a vector for each input; cancelling drops those that are not computed yet."""

    async def rerank(
        self, request: runner_pb2.RerankRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.RerankResponse:
        """Return a raw score for each document; cancelling drops those that are not computed yet."""

    async def tokenize(self, request: runner_pb2.TokenizeRequest) -> runner_pb2.TokenizeResponse:
        """Return token ids of text."""

    async def detokenize(self, ids: list[int]) -> bytes:
        """Return bytes of token ids."""

    def watch_load(self, *, held_prefixes: bool = False) -> AsyncGenerator[cluster_pb2.RunnerStatus, None]:
        """Yield the status on connect and on change, until the connection breaks."""

    async def close(self) -> None:
        """Close the connection; running calls end."""


ConnectRunner = Callable[[str], RunnerPort]

# Beginning of the text of a call that reached no server (`common.grpc.errors`); the rest names addresses.
_UNREACHABLE = "service unreachable"
_SCHEDULER_RETRY_S = 5.0


def for_clients(error: ModelUnavailable) -> ModelUnavailable:
    """Remove the scheduler's address from the error of a call: it is the operator's business alone."""
    if not error.message.startswith(_UNREACHABLE):
        return error
    log.warning("scheduler.unreachable", text=error.message)
    return ModelUnavailable("the scheduler cannot be reached", retry_after_s=_SCHEDULER_RETRY_S)


async def scheduler_answer(answer: Awaitable[Answer]) -> Answer:
    """Wait for an answer of the scheduler. If it cannot be reached, clients do not see its address.

    Raises:
        PunaError: what the scheduler raised.
    """
    try:
        return await answer
    except ModelUnavailable as error:
        raise for_clients(error) from error

"""What the gateway needs of the other services, as their clients offer it (`scheduler.client`, `runner.client`)."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import Protocol

from common.errors import ModelUnavailable
from common.telemetry.logs import get_logger
from protos import cluster_pb2, discovery_pb2, runner_pb2, scheduler_pb2, store_pb2

log = get_logger()


class Scheduler(Protocol):
    """The scheduler's client. Every method raises domain errors only."""

    def ensure_model(self, request: scheduler_pb2.EnsureModelRequest) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Load a model; the last event is `ready`."""

    def watch_routes(self) -> AsyncIterator[scheduler_pb2.RouteTable]:
        """Routing tables for ever; reconnects by itself."""

    async def unload_model(self, name: str) -> int:
        """Stop the idle replicas of a model; how many were told to."""

    async def list_nodes(self) -> discovery_pb2.Inventory:
        """The inventory."""

    async def list_constraints(self, name: str = "") -> list[scheduler_pb2.ModelConstraints]:
        """What operators want of one model, or of every one that something is set for."""

    async def put_constraints(self, model: scheduler_pb2.ModelConstraints) -> scheduler_pb2.ModelConstraints:
        """Set what is wanted of a model."""

    async def remove_constraints(self, name: str) -> bool:
        """Forget it; whether something was set."""

    async def explain(self, request: scheduler_pb2.ExplainRequest) -> scheduler_pb2.Explanation:
        """Why a model lies where it does, or where it would go."""

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
        """How long requests wait here for a slot."""


class Runner(Protocol):
    """The client of one runner. Every method raises domain errors only."""

    def generate(
        self, request: runner_pb2.GenerateRequest, *, timeout_s: float | None = None
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """One answer; leaving the iteration cancels it."""

    async def embed(
        self, request: runner_pb2.EmbedRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.EmbedResponse:
        """A vector for each input; cancelling drops what is not computed yet."""

    async def rerank(
        self, request: runner_pb2.RerankRequest, *, timeout_s: float | None = None
    ) -> runner_pb2.RerankResponse:
        """A raw score for each document; cancelling drops what is not computed yet."""

    async def tokenize(self, request: runner_pb2.TokenizeRequest) -> runner_pb2.TokenizeResponse:
        """Token ids of text."""

    async def detokenize(self, ids: list[int]) -> bytes:
        """Bytes of token ids."""

    def watch_load(self, *, held_prefixes: bool = False) -> AsyncGenerator[cluster_pb2.RunnerStatus, None]:
        """Status on connect and on change, until the connection breaks."""

    async def close(self) -> None:
        """Close the connection; running calls end."""


class Stores(Protocol):
    """The client of the model stores of all nodes, by address. Every method raises domain errors only."""

    def pull(self, address: str, request: store_pb2.PullRequest) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model; the last message is "success"."""

    def create(self, address: str, request: store_pb2.CreateRequest) -> AsyncIterator[store_pb2.StoreProgress]:
        """Make a model; the last message is "success"."""

    async def copy(self, address: str, *, source: str, destination: str) -> None:
        """Give a model a second name."""

    async def delete(self, address: str, name: str) -> int:
        """Forget a name; bytes that this freed."""

    async def stat_blob(self, address: str, digest: str) -> int | None:
        """The size of a blob; None: it is not there."""

    async def put_blob(
        self, address: str, digest: str, content: AsyncIterable[bytes], *, size_bytes: int = 0
    ) -> store_pb2.PutBlobResponse:
        """Send a blob, no faster than it is taken."""

    def read_blob(
        self, address: str, digest: str, *, offset: int = 0, max_bytes: int = 0
    ) -> AsyncIterator[store_pb2.BlobChunk]:
        """The content of a blob."""

    async def read_header(self, address: str, digest: str) -> bytes:
        """Everything that the header of a model or blob says, as JSON."""

    async def read_manifest(self, address: str, name: str) -> bytes:
        """The manifest of a name."""


ConnectRunner = Callable[[str], Runner]

# How `common.grpc.errors` begins the text of a call that reached nobody; the rest names addresses.
_UNREACHABLE = "service unreachable"
_SCHEDULER_RETRY_S = 5.0


def for_clients(error: ModelUnavailable) -> ModelUnavailable:
    """An error of a call to the scheduler without its address, which is the operator's business alone."""
    if not error.message.startswith(_UNREACHABLE):
        return error
    log.warning("scheduler.unreachable", text=error.message)
    return ModelUnavailable("the scheduler cannot be reached", retry_after_s=_SCHEDULER_RETRY_S)

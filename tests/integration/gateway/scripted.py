"""A runner and a scheduler that keep their contracts and do exactly what a test scripts, over real gRPC."""

import asyncio
import contextlib
import itertools
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc
from grpc import aio

from common.closing import closing
from common.errors import DeviceNotFound, InvalidRequest, ModelNotFound, PlacementMismatch, PunaError
from common.grpc.server import GrpcServer, bind_server
from protos import cluster_pb2, discovery_pb2, runner_pb2, runner_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from runner.core.sequence.truncation import too_long
from runner.serve.status import REPORT_INTERVAL_S
from runner.serve.streams import ProbationPlace
from tests.integration.gateway.scripted_multiplex import ScriptedCall
from tests.integration.gateway.scripted_operations import ScriptedOperations

Context = aio.ServicerContext[Any, Any]
MODEL_NAME = "demo:latest"
ANSWER = ("Puna", " answers", " höflich", ".")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<s>", "<|im_start|>", "<|im_end|>")
_PIECE = re.compile(r"\s*\S+|\s+")
_ids = itertools.count(1)


def token_ids(text: str) -> list[int]:
    """One id per word, the same for the same word: enough of a tokenizer for counting."""
    return [sum(piece.encode()) % 1000 for piece in _PIECE.findall(text)]


def segment_ids(segments: Sequence[runner_pb2.Segment]) -> list[int]:
    """Token ids of a prompt."""
    ids: list[int] = []
    for segment in segments:
        ids += list(segment.token_ids.ids) or token_ids(segment.text or segment.literal)
    return ids


Step = Callable[["ScriptedRunner"], Awaitable[None]]


@dataclass(eq=False)
class ScriptedRunner(runner_pb2_grpc.RunnerServicer):
    """Answers every request with `pieces`. `before` and `after_piece` are run where their names say."""

    multiplexes: ClassVar[bool] = True  # False: as of an earlier build
    pieces: Sequence[str] = ANSWER
    slots: int = 4
    context_tokens: int = 512
    end: runner_pb2.DoneReason.ValueType = runner_pb2.DONE_REASON_END_TOKEN
    cut_by: runner_pb2.CutBy.ValueType = runner_pb2.CUT_BY_UNSPECIFIED
    before: Step | None = None
    after_piece: dict[int, Step] = field(default_factory=dict)
    requests: list[runner_pb2.GenerateRequest] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    placement: cluster_pb2.PlacementRef = field(
        default_factory=lambda: cluster_pb2.PlacementRef(
            placement_id=f"placement-{next(_ids)}", generation=1, incarnation="one"
        )
    )
    state: cluster_pb2.RunnerState.ValueType = cluster_pb2.RUNNER_STATE_READY
    busy: int = 0
    busy_most: int = 0
    multiplexed: int = 0  # calls of Multiplex
    probation: ProbationPlace = field(default_factory=ProbationPlace)
    server: GrpcServer | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self.server = bind_server(
            "127.0.0.1:0",
            register=lambda server: runner_pb2_grpc.add_RunnerServicer_to_server(self, server),
            services=["puna.v1.Runner"],
        )
        await self.server.start()

    async def stop(self) -> None:
        """At once, as a process that is killed: running calls break."""
        assert self.server is not None
        await self.server.server.stop(None)

    @property
    def address(self) -> str:
        assert self.server is not None
        return self.server.address

    def status(self) -> cluster_pb2.RunnerStatus:
        return cluster_pb2.RunnerStatus(
            state=self.state,
            load_fraction=1.0,
            slots_total=self.slots,
            slots_busy=min(self.busy, self.slots),
            multiplexes=self.multiplexes,
        )

    def replica(self) -> scheduler_pb2.Replica:
        return scheduler_pb2.Replica(
            placement=self.placement,
            node_id="node-1",
            address=self.address,
            layout=cluster_pb2.Layout(
                devices=[cluster_pb2.DeviceLayers(device_id="GPU-1", layer_count=5)],
                context_tokens=self.context_tokens,
                slots=self.slots,
            ),
            status=cluster_pb2.RunnerStatus(
                state=self.state,
                slots_total=self.slots,
                memory=cluster_pb2.MemoryReport(
                    devices=[cluster_pb2.DeviceMemory(device_id="GPU-1", weights_bytes=100, cache_bytes=20)],
                    host=cluster_pb2.DeviceMemory(graph_bytes=3),
                ),
            ),
            device_names=["Test GPU"],
        )

    async def Generate(  # noqa: N802
        self, request: runner_pb2.GenerateRequest, context: Context
    ) -> AsyncIterator[runner_pb2.GenerateEvent]:
        self.requests.append(request)
        self.request_ids += [str(value) for key, value in context.invocation_metadata() or () if key == "x-request-id"]
        if request.placement != self.placement:
            raise PlacementMismatch("another placement runs here")
        self._count(+1)
        self.started.set()
        try:
            if self.before is not None:
                await self.before(self)
            async for event in self._answer(request):
                yield event
        finally:
            self._count(-1)
            self.released.set()

    async def Probation(  # noqa: N802
        self, request: runner_pb2.ProbationRequest, context: Context
    ) -> AsyncIterator[runner_pb2.ProbationGranted]:
        if not self.multiplexes:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")
        async with closing(self.probation.hold()) as grants:
            async for granted in grants:
                yield granted

    async def Multiplex(  # noqa: N802
        self, request: AsyncIterator[runner_pb2.SequenceCommand], context: Context
    ) -> AsyncIterator[runner_pb2.StepEvents]:
        self.multiplexed += 1
        async with closing(ScriptedCall(self.Generate).run(request)) as messages:
            async for message in messages:
                yield message

    async def _answer(self, request: runner_pb2.GenerateRequest) -> AsyncIterator[runner_pb2.GenerateEvent]:
        prompt = segment_ids(request.prompt)
        if len(prompt) > self.context_tokens and not request.truncate:
            raise too_long(len(prompt), self.context_tokens, param="prompt")
        progress = runner_pb2.PromptProgress(done_tokens=len(prompt), total_tokens=len(prompt), cached_tokens=1)
        yield runner_pb2.GenerateEvent(prompt=progress)
        limit = request.max_tokens if request.HasField("max_tokens") else len(self.pieces)
        for index, piece in list(enumerate(self.pieces[:limit]))[len(request.resume_token_ids) :]:
            token = scripted_token(index, piece, request)
            yield runner_pb2.GenerateEvent(tokens=runner_pb2.TokenChunk(text=piece, tokens=[token]))
            if index in self.after_piece:
                await self.after_piece[index](self)
        cut = limit < len(self.pieces)
        final = runner_pb2.Final(
            reason=runner_pb2.DONE_REASON_LENGTH if cut else self.end,
            cut_by=self.cut_by,
            prompt_tokens=len(prompt),
            cached_tokens=1,
            generated_tokens=limit if cut else len(self.pieces) + 1,
            prompt_duration_ns=2_000_000,
            generate_duration_ns=3_000_000,
        )
        yield runner_pb2.GenerateEvent(final=final)

    async def Tokenize(  # noqa: N802
        self, request: runner_pb2.TokenizeRequest, context: Context
    ) -> runner_pb2.TokenizeResponse:
        ids = segment_ids(request.segments)
        return runner_pb2.TokenizeResponse(ids=ids, pieces=[b"x"] * len(ids))

    async def Detokenize(  # noqa: N802
        self, request: runner_pb2.DetokenizeRequest, context: Context
    ) -> runner_pb2.DetokenizeResponse:
        return runner_pb2.DetokenizeResponse(text=" ".join(str(token_id) for token_id in request.ids).encode())

    async def GetInfo(  # noqa: N802
        self, request: runner_pb2.GetInfoRequest, context: Context
    ) -> runner_pb2.RunnerInfo:
        return runner_pb2.RunnerInfo(placement=self.placement, model_name=MODEL_NAME)

    async def Embed(  # noqa: N802
        self, request: runner_pb2.EmbedRequest, context: Context
    ) -> runner_pb2.EmbedResponse:
        embeddings = []
        for one in request.inputs:
            ids = segment_ids(one.segments)
            if len(ids) > self.context_tokens and not request.truncate:
                raise too_long(len(ids), self.context_tokens, param="input")
            embeddings.append(runner_pb2.Embedding(vector=[3.0, 4.0, float(len(ids) % 7)], prompt_tokens=len(ids)))
        return runner_pb2.EmbedResponse(embeddings=embeddings, prompt_duration_ns=2_000_000)

    async def Rerank(  # noqa: N802
        self, request: runner_pb2.RerankRequest, context: Context
    ) -> runner_pb2.RerankResponse:
        scores = [runner_pb2.RerankScore(score=len(text) % 9 - 4, prompt_tokens=5) for text in request.documents]
        return runner_pb2.RerankResponse(scores=scores, prompt_duration_ns=2_000_000)

    async def WatchLoad(  # noqa: N802
        self, request: runner_pb2.WatchLoadRequest, context: Context
    ) -> AsyncIterator[cluster_pb2.RunnerStatus]:
        """The status now, after every change, and every second as of a runner."""
        while True:
            self._changed.clear()
            yield self.status()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_INTERVAL_S):
                    await self._changed.wait()

    async def UseIdentity(  # noqa: N802
        self, request: runner_pb2.RunnerIdentity, context: Context
    ) -> runner_pb2.UseIdentityResponse:
        return runner_pb2.UseIdentityResponse()

    async def UseThreads(  # noqa: N802
        self, request: runner_pb2.UseThreadsRequest, context: Context
    ) -> runner_pb2.UseThreadsResponse:
        return runner_pb2.UseThreadsResponse(threads=request.threads)

    def _count(self, step: int) -> None:
        self.busy += step
        self.busy_most = max(self.busy_most, self.busy)
        self._changed.set()


def scripted_token(index: int, piece: str, request: runner_pb2.GenerateRequest) -> runner_pb2.Token:
    token = runner_pb2.Token(id=100 + index, piece=piece.encode())
    if request.HasField("top_logprobs"):
        token.logprob = -0.5 * (index + 1)
        for rank in range(request.top_logprobs):
            logprob = token.logprob if rank == 0 else -math.inf
            token.top.append(runner_pb2.Alternative(id=100 + index + rank, piece=piece.encode(), logprob=logprob))
    return token


def scripted_model(name: str = MODEL_NAME, **description: Any) -> cluster_pb2.Model:
    fields: dict[str, Any] = {
        "architecture": "llama",
        "parameter_count": 3_200_000,
        "quantization": "Q8_0",
        "context_tokens": 512,
        "vocabulary_size": 1024,
        "capabilities": ["completion", "tools"],
        "chat_template": TEMPLATE,
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "special_tokens": SPECIAL_TOKENS,
        "metadata_json": '{"general.architecture": "llama", "tokenizer.ggml.tokens": [], "llama.context_length": 512}',
    }
    return cluster_pb2.Model(
        name=name,
        digest="ab" * 32,
        size_bytes=4_000_000,
        modified_at_unix_s=1_700_000_000,
        description=cluster_pb2.ModelDescription(**(fields | description)),
    )


@dataclass(eq=False)
class ScriptedScheduler(ScriptedOperations):
    """Knows `models`; loading one puts the next of `spare` runners into its route."""

    models: dict[str, cluster_pb2.Model] = field(default_factory=lambda: {MODEL_NAME: scripted_model()})
    replicas: dict[str, list[ScriptedRunner]] = field(default_factory=dict)
    spare: list[ScriptedRunner] = field(default_factory=list)
    load_error: PunaError | None = None
    queued: scheduler_pb2.Queued | None = None  # what loads are told before they begin, until `placed`
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    loading: asyncio.Event | None = None  # loads wait for it
    ensured: list[scheduler_pb2.EnsureModelRequest] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    constraints: dict[str, scheduler_pb2.ModelConstraints] = field(default_factory=dict)
    explained: list[scheduler_pb2.ExplainRequest] = field(default_factory=list)
    queues: list[scheduler_pb2.ReportQueuesRequest] = field(default_factory=list)
    drained: dict[str, int | None] = field(default_factory=dict)  # node → budget_ms
    aliases: dict[str, str] = field(default_factory=dict)
    knows_aliases: bool = True
    server: GrpcServer | None = None
    version: int = 0
    fence: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self) -> None:
        self.server = bind_server(
            "127.0.0.1:0",
            register=lambda server: scheduler_pb2_grpc.add_SchedulerServicer_to_server(self, server),
            services=["puna.v1.Scheduler"],
        )
        await self.server.start()

    async def stop(self) -> None:
        assert self.server is not None
        await self.server.server.stop(None)

    @property
    def address(self) -> str:
        assert self.server is not None
        return self.server.address

    def route(self, name: str) -> scheduler_pb2.ModelRoute:
        replicas = [runner.replica() for runner in self.replicas.get(name, ())]
        return scheduler_pb2.ModelRoute(model=self.models[name], replicas=replicas)

    async def publish(self) -> None:
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def EnsureModel(  # noqa: N802
        self, request: scheduler_pb2.EnsureModelRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        self.ensured.append(request)
        name = request.model_name if ":" in request.model_name else f"{request.model_name}:latest"
        if name not in self.models:
            raise ModelNotFound(f"no such model: {request.model_name}")
        if self.load_error is not None:
            raise self.load_error
        if not self.replicas.get(name):
            if self.queued is not None:
                yield scheduler_pb2.EnsureModelEvent(queued=self.queued)
                await self.placed.wait()
            loading = scheduler_pb2.Loading(fraction=0.5, bytes_done=1, bytes_total=2)
            yield scheduler_pb2.EnsureModelEvent(loading=loading)
            if self.loading is not None:
                await self.loading.wait()
            if not self.replicas.get(name):
                self.replicas[name] = [self.spare.pop(0)]
                await self.publish()
        yield scheduler_pb2.EnsureModelEvent(ready=scheduler_pb2.Ready(route=self.route(name)))

    async def WatchRoutes(  # noqa: N802
        self, request: scheduler_pb2.WatchRoutesRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.RouteTable]:
        sent = -1
        while True:
            async with self._changed:
                while self.version == sent:
                    await self._changed.wait()
                sent = self.version
            routes = [self.route(name) for name in self.models]
            aliases = self.alias_table()
            yield scheduler_pb2.RouteTable(version=sent, routes=routes, aliases=aliases, fence=self.fence)

    async def UnloadModel(  # noqa: N802
        self, request: scheduler_pb2.UnloadModelRequest, context: Context
    ) -> scheduler_pb2.UnloadModelResponse:
        self.unloaded.append(request.model_name)
        return scheduler_pb2.UnloadModelResponse(replicas=len(self.replicas.pop(request.model_name, ())))

    async def ListConstraints(  # noqa: N802
        self, request: scheduler_pb2.ListConstraintsRequest, context: Context
    ) -> scheduler_pb2.ListConstraintsResponse:
        names = [request.model_name] if request.model_name else sorted(self.constraints)
        models = [self.constraints.get(name, scheduler_pb2.ModelConstraints(model_name=name)) for name in names]
        return scheduler_pb2.ListConstraintsResponse(models=models)

    async def PutConstraints(  # noqa: N802
        self, request: scheduler_pb2.PutConstraintsRequest, context: Context
    ) -> scheduler_pb2.ModelConstraints:
        if "nowhere" in request.model.constraints.nodes:
            raise InvalidRequest('"nodes" matches no node or device of this cluster')
        self.constraints[request.model.model_name] = request.model
        return request.model

    async def RemoveConstraints(  # noqa: N802
        self, request: scheduler_pb2.RemoveConstraintsRequest, context: Context
    ) -> scheduler_pb2.RemoveConstraintsResponse:
        return scheduler_pb2.RemoveConstraintsResponse(
            was_set=self.constraints.pop(request.model_name, None) is not None
        )

    async def Explain(  # noqa: N802
        self, request: scheduler_pb2.ExplainRequest, context: Context
    ) -> scheduler_pb2.Explanation:
        self.explained.append(request)
        device = scheduler_pb2.ExplainedDevice(
            device_id="GPU-1", name="Test GPU", need_bytes=700, weights_bytes=600, reserve_bytes=100,
            available_bytes=500, free_bytes=550, free_source="nvml", free_age_ms=400,
        )  # fmt: skip
        candidate = scheduler_pb2.ExplainedCandidate(node_id="node-1", verdict="short_bytes", slots=1, devices=[device])
        return scheduler_pb2.Explanation(
            model_name=request.model_name, hypothetical=not request.last, outcome="busy", candidates=[candidate]
        )

    async def ClearDevice(  # noqa: N802
        self, request: scheduler_pb2.ClearDeviceRequest, context: Context
    ) -> scheduler_pb2.ClearDeviceResponse:
        if request.device != "GPU-1":
            raise DeviceNotFound(f"device '{request.device}' not found")
        device = cluster_pb2.Device(id="GPU-1", name="CUDA0", state=cluster_pb2.DEVICE_STATE_OK)
        return scheduler_pb2.ClearDeviceResponse(node_id="node-1", device=device)

    async def ReportQueues(  # noqa: N802
        self, request: scheduler_pb2.ReportQueuesRequest, context: Context
    ) -> scheduler_pb2.ReportQueuesResponse:
        self.queues.append(request)
        return scheduler_pb2.ReportQueuesResponse()

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Context
    ) -> discovery_pb2.Inventory:
        cpu = cluster_pb2.Device(
            id="cpu",
            name="CPU",
            backend="CPU",
            type=cluster_pb2.DEVICE_TYPE_CPU,
            total_bytes=1000,
            free_bytes=400,
            free_source="meminfo",
            swap_total_bytes=200,
            swap_free_bytes=150,
            state=cluster_pb2.DEVICE_STATE_OK,
        )
        node = cluster_pb2.Node(id="node-1", address="127.0.0.1:1", engine_build="test", devices=[cpu])
        return discovery_pb2.Inventory(version=1, nodes=[node])

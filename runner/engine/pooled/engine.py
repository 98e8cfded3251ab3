"""The engine for models with pooling: encoders, embedding and ranking models."""

import time
from collections.abc import Sequence

import llama_cpp.llama_cpp as llama

from common.errors import UnsupportedCapability
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.layout.load_log import MemoryClass
from runner.core.layout.memory_report import MemoryUse
from runner.core.model.description import Pooling
from runner.core.model.model_files import ModelFiles
from runner.core.pooled.pooling import pooled_layout
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest
from runner.core.threads.step_times import StepTimes
from runner.engine.contract.engine import EngineListener, LoadedModel, refuse_image
from runner.engine.contract.pooling import PooledModel
from runner.engine.llama.accounting import count_memory, report_layers
from runner.engine.llama.context import Context
from runner.engine.llama.launch import Launch, ModelHeader
from runner.engine.llama.llama_engine import LlamaEngine, system_facts
from runner.engine.llama.memory import BreakdownUnavailable
from runner.engine.llama.model import Model, launch_failure
from runner.engine.llama.opened_context import open_context
from runner.engine.llama.special_tokens import read_frame, read_pair_tokens, read_rerank_template
from runner.engine.pooled.pooled_context import PooledContext, output_bytes, pooled_context_parameters
from runner.engine.pooled.pooled_loop import Job, PooledLoop
from runner.engine.threads.engine_loop import IDLE_TEST_S
from runner.engine.threads.spinning import ComputeThreads

log = get_logger()

NO_GENERATION = "this model does not support generation"


class PooledLlamaEngine(LlamaEngine[PooledLoop]):
    """See `runner.engine.contract.pooling.PooledEngine`."""

    def __init__(
        self, files: ModelFiles, layout: Layout, pooling: Pooling, *, header: ModelHeader | None = None
    ) -> None:
        super().__init__(files, layout, header)
        self._pooling = pooling
        self._pooled_model: PooledModel | None = None

    @property
    def pooled_model(self) -> PooledModel:
        """Only once loaded."""
        assert self._pooled_model is not None, "still loading"
        return self._pooled_model

    def submit_inputs(self, request_id: int, inputs: Sequence[Sequence[int]]) -> None:
        """Compute framed inputs."""
        limit = self.pooled_model.input_tokens_max
        assert all(0 < len(tokens) <= limit for tokens in inputs), "an input that was not framed"
        counts = [len(tokens) for tokens in inputs]
        job = Job(id=request_id, inputs=inputs, input_tokens=counts, submitted_ns=time.monotonic_ns())
        self._serving.submit(job)

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:  # noqa: ARG002  # as `Engine` has it
        """Refuse.

        Raises:
            UnsupportedCapability: always.
        """
        raise UnsupportedCapability(NO_GENERATION)

    def read_image(self, data: bytes) -> PreparedImage:
        """Refuse it.

        Raises:
            UnsupportedCapability: this engine sees no images.
        """
        return refuse_image(data)

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """Nothing is generated here."""

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Nothing is streamed here."""

    def _open(self, launch: Launch, model: Model, listener: EngineListener) -> tuple[Context, LoadedModel]:
        layout = pooled_layout(launch.layout, recurrent=model.recurrent)
        context = self._open_context(launch, model, layout)
        pooled = self._pooled_model = _describe(model, context)
        # Of fused attention only a token beside 512 others would round differently; here it would be alone.
        self._threads = ComputeThreads(context.set_threads, threads=layout.threads, keeps_lone=False)
        self._loop = PooledLoop(context, listener, self._threads, StepTimes(on_devices=bool(layout.devices)))
        if layout.devices and context.pooling is not Pooling.NONE:  # else there is nothing to read
            self._loop.idle_test_s = IDLE_TEST_S
        loaded = LoadedModel(
            layout=layout,
            warnings=launch.resolved.warnings,
            slot_context_tokens=pooled.input_tokens_max,
            weights_bytes=model.size_bytes,
            memory=_memory_in_use(launch, model, context, layout),
            threads_max=launch.threads_max,
        )
        log.info("engine.system", **system_facts(), threads=layout.threads, pooling=context.pooling.name.lower())
        return context, loaded

    def _open_context(self, launch: Launch, model: Model, layout: Layout) -> PooledContext:
        """Create the context and let it reserve all that it will ever need."""
        token_id = max(model.vocabulary.bos, 0)
        context = open_context(launch, model, pooled_context_parameters(layout, self._pooling), PooledContext)
        try:
            context.reserve(token_id)
        except MemoryError:
            failure = launch_failure(launch, MemoryClass.GRAPH)
            context.close()
            raise failure from None
        if context.pooling is not Pooling.NONE:  # then there is nothing to read
            context.compute([[token_id]])
        context.forget()
        return context


def _memory_in_use(launch: Launch, model: Model, context: PooledContext, layout: Layout) -> MemoryUse | None:
    """With the output buffer, which the engine's own count leaves out; here it may be larger than the weights."""
    try:
        count = count_memory(launch, context.pointer)
    except BreakdownUnavailable as error:
        log.info("engine.memory_unknown", text=str(error))
        return None
    rows = output_bytes(model.pointer, tokens=context.batch_tokens)
    return report_layers(launch, layout, count, cells=context.cells, host_extra_bytes=rows)


def _describe(model: Model, context: PooledContext) -> PooledModel:
    vocabulary = llama.llama_model_get_vocab(model.pointer)
    return PooledModel(
        pooling=context.pooling,
        input_tokens_max=min(context.batch_tokens, model.trained_context_tokens or context.batch_tokens),
        vector_length=context.vector_length,
        frame=read_frame(vocabulary),
        pair_tokens=read_pair_tokens(vocabulary),
        rerank_template=read_rerank_template(model.pointer),
    )

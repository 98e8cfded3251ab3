"""The default engine: continuous batching of many sequences in one llama.cpp context."""

import json
import os
import sys
from collections.abc import Callable

from common.errors import PunaError
from common.spec.layout import Layout, SplitMode
from common.telemetry.logs import get_logger
from runner.core.layout.layout import COPIES_BYTES_MAX, slot_context_tokens
from runner.core.layout.memory_report import MemoryUse, add_draft
from runner.core.layout.projector import widened
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.decode_windows import StepReads, weights_read
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest, check_request, prepare_prompt
from runner.core.sequence.slots import SlotPolicy
from runner.core.states.chain import Facts, name_space
from runner.core.threads.kernels import lone_steps_round_by_threads
from runner.core.threads.step_times import StepTimes
from runner.cores import computing_cores
from runner.engine.batched.loop import BatchedOptions, Loop
from runner.engine.batched.media_engine import Vision
from runner.engine.batched.sampling_pool import SamplingPool
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import SlotTable
from runner.engine.batched.state_keeper import StateKeeper
from runner.engine.contract.engine import EngineListener, LoadedModel
from runner.engine.devices.devices import engine_build
from runner.engine.llama.context import Context
from runner.engine.llama.draft_model import DraftModel, draft_memory, open_draft
from runner.engine.llama.launch import Launch, ModelHeader
from runner.engine.llama.llama_engine import LlamaEngine, system_facts
from runner.engine.llama.model import Model
from runner.engine.llama.opened_context import as_opened, generation_memory, open_context
from runner.engine.llama.parameters import context_parameters
from runner.engine.llama.warm_up import warm_up
from runner.engine.media.media_encoder import EncodingDone
from runner.engine.threads.spinning import ComputeThreads

log = get_logger()

SWITCH_INTERVAL_S = 0.0005


class BatchedEngine(LlamaEngine[Loop]):
    """See `runner.engine.contract.engine.Engine`."""

    def __init__(
        self,
        files: ModelFiles,
        layout: Layout,
        options: BatchedOptions | None = None,
        *,
        header: ModelHeader | None = None,
    ) -> None:
        super().__init__(files, layout, header)
        self._options = options or BatchedOptions()
        self._pool: SamplingPool | None = None
        self._slot_context_tokens = 0
        self._draft: DraftModel | None = None
        self.vision = Vision()

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:
        """Check and run a request.

        Raises:
            InvalidRequest: no runner of this model could do it.
            PromptTooLong: it may not be cut, and is longer than the context.
        """
        loop, vocabulary = self._serving, self.vocabulary
        check_request(request, vocabulary_size=vocabulary.size)
        prepared = prepare_prompt(request, slot_context_tokens=self._slot_context_tokens, adds_bos=vocabulary.adds_bos)
        sequence = Sequence(
            sequence_id,
            request,
            prepared,
            end_tokens=vocabulary.end_tokens,
            suppressed=vocabulary.suppressed,
            repeats_max=self._options.repeats_max,
        )
        loop.submit(sequence)

    def read_image(self, data: bytes) -> PreparedImage:
        """Return the inputs that an image file turns into.

        Raises:
            UnsupportedCapability: the model sees no images.
            InvalidRequest: no image, or none that it can take.
        """
        return self.vision.read(data)

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """End a sequence and keep only so many of its generated tokens in the cache."""
        self._serving.cut(sequence_id, generated_tokens)

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Leave a sequence out of the batches while its reader is behind."""
        self._serving.pause(sequence_id, paused)

    def _close(self, context: Context) -> None:
        self.vision.close()
        assert self._pool is not None
        self._pool.close()
        if self._draft is not None:
            self._draft.close()
        super()._close(context)

    def _open(self, launch: Launch, model: Model, listener: EngineListener) -> tuple[Context, LoadedModel]:
        layout, warnings = launch.layout, list(launch.resolved.warnings)
        try:
            self.vision.open(launch, model, warnings)
            widest = widened(layout, self.vision.whole_rows)
            context = open_context(launch, model, context_parameters(widest), Context)
        except PunaError:
            self.vision.close()
            raise
        layout = as_opened(layout, warnings)
        tokens = self._slot_context_tokens = min(
            layout.context_tokens, slot_context_tokens(context.cells, layout.slots)
        )
        compute = self._threads = ComputeThreads(
            context.set_threads,
            threads=layout.threads,
            keeps_lone=lone_steps_round_by_threads(layout, cells=context.cells),
        )
        times = StepTimes(on_devices=bool(layout.devices))
        rules = warm_up(context, model, layout, times)
        compute.decide()  # the first answer is not to be the one that finds out
        media = self.vision.connect(launch, context, context_tokens=tokens, on_done=self._encoded, warnings=warnings)
        counted = generation_memory(launch, widest, model, context, self.vision.memory())
        use = counted.use if counted is not None else None
        no_draft = self._open_draft(launch, model, warnings)
        draft = self._draft
        if draft is not None:
            compute.also(draft.context.set_threads)
            taken = draft_memory(draft)
            use = add_draft(use, taken) if use is not None and taken is not None else None
        threads = computing_cores() - 1 if self._options.sampling_threads is None else self._options.sampling_threads
        pool = self._pool = SamplingPool(context, vocabulary_size=model.vocabulary.size, threads=threads)
        # No more host RAM for copies than was counted for them.
        copies_max = COPIES_BYTES_MAX if counted is None else counted.copies_bytes
        slots = SlotTable(
            context,
            policy=self._options.policy,
            rules=rules,
            copies_bytes_max=min(self._options.copies_bytes_max, copies_max),
            cost=times.cost,
        )
        self._loop = Loop(
            context,
            slots,
            listener,
            self._options,
            media,
            compute,
            times,
            pool,
            # With a pipeline the calls are larger than the graphs, so that every device has work.
            batch_tokens=layout.batch_tokens * (layout.slots if layout.pipeline else 1),
            draft=draft,
            no_draft=no_draft,
        )
        states = self._options.states
        if states is not None and self._options.policy is SlotPolicy.BEST:
            facts = {**self._options.state_facts, **state_facts(launch, layout, context)}
            self._loop.states = StateKeeper(
                context, slots, states, times, space=name_space(facts), post=self._loop.post
            )
        if layout.devices:
            self._loop.idle_test_s = self._options.idle_test_s
        # The engine thread waits no longer than this for the event loop to give the interpreter up.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        loaded = LoadedModel(
            layout=layout,
            warnings=tuple(warnings),
            slot_context_tokens=tokens,
            weights_bytes=model.size_bytes,
            memory=use,
            reads=_step_reads(launch, use, cells=context.cells),
            threads_max=launch.threads_max,
            speculation=self._loop.speculation,
        )
        log.info(
            "engine.system",
            **system_facts(),
            threads=layout.threads,
            erases_tail=rules.erases_tail,
            window_tokens=rules.window_tokens,
            can_shift=rules.can_move,
        )
        return context, loaded

    def _open_draft(self, launch: Launch, model: Model, warnings: list[str]) -> str:
        """Load the draft model; the target serves without one that cannot be used. Return why it is not used."""
        try:
            self._draft = open_draft(launch, model, lambda _: not self._stop_load.is_set())
        except PunaError as error:
            warnings.append(f"no draft model: {error.message}")
            return error.message
        return ""

    def call(self, command: Callable[[], None]) -> None:
        """Call something in the engine thread, between two steps; before it serves, in this one."""
        if self._loop is None:
            command()
        else:
            self._loop.post(command)

    def forget(self, salt: str, done: Callable[[], None]) -> None:
        """Drop what is held of a tenant, then call `done`, both as `call` does."""

        def forget() -> None:
            if self._loop is not None:
                self._loop.forget(salt)
            done()

        self.call(forget)

    def _encoded(self, done: EncodingDone) -> None:
        """On the encoder's thread."""
        self._serving.take_encoded(done)


def state_facts(launch: Launch, layout: Layout, context: Context) -> Facts:
    """Return what the engine can tell of everything that a state depends on.

    Splits and the number of slots may differ. The context's length matters only where it decides how positions turn.
    """
    header = launch.header
    positions = any("rope_factors" in name for name in header.tensors)
    return {
        "engine": engine_build(),
        "weights_bytes": header.weights_bytes,
        "projector": launch.files.projector is not None,
        "adapters": json.dumps([adapter.scale for adapter in launch.files.adapters]),
        "cache_types": "/".join(layout.cache_types),
        "flash_attention": layout.flash_attention.value,
        "shares_cells": context.shares_cells,
        "context_tokens": layout.context_tokens if positions else 0,
        "rotation_off": os.environ.get("LLAMA_ATTN_ROT_DISABLE", ""),
    }


def _step_reads(launch: Launch, use: MemoryUse | None, *, cells: int) -> StepReads | None:
    """Return the bytes that a decode step of one token reads.

    None without a count, with adapters, and where devices work on one layer together.
    """
    layout = launch.layout
    together = layout.split_mode is not SplitMode.LAYER and len(layout.devices) > 1
    if use is None or together or launch.adapter_tensors or not cells:
        return None
    numbers = launch.header.numbers
    weights = weights_read(
        launch.header.tensors,
        launch.places,
        experts=numbers.one("expert_count"),
        experts_used=numbers.one("expert_used_count"),
    )
    # The output layer has no cells; host RAM has copies of prompts there.
    cache = sum(sum(held.layer_cache_bytes[:-1]) for held in (use.host, *(held for _, held in use.devices)))
    return StepReads(weights=weights, cell_bytes=cache / cells)

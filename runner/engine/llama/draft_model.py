"""A draft model beside its target: loaded, tried and counted, or given up with the reason.

It has a context of its own with a sequence for each slot of the target. Only the engine thread may use it.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import llama_cpp.llama_cpp as llama

from common.clock import NS_PER_S
from common.errors import BadModelFile, PunaError
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.layout.layout import cache_cells
from runner.core.layout.memory_report import ClassBytes, MemoryUse
from runner.core.model.model_files import ModelFiles
from runner.core.pooled.pooling import pooling_of
from runner.core.speculation.draft_models import VocabularyFacts, draft_layout, vocabulary_difference
from runner.engine.llama.accounting import count_memory, report_layers
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context, DecodeResult, EngineFailure
from runner.engine.llama.launch import Launch, prepare_launch, read_header
from runner.engine.llama.memory import BreakdownUnavailable
from runner.engine.llama.model import Model, load_launched
from runner.engine.llama.opened_context import open_context
from runner.engine.llama.parameters import context_parameters

log = get_logger()

_ROW_VALUE_BYTES = 4
_TIMES_MAX = 9  # durations of calls with one input
_TRIED_CALLS = 3


@dataclass(slots=True)
class Lane:
    """Tokens that one sequence of the draft context holds, and their tenant; None: of no tenant, not to be reused."""

    held: list[int] = field(default_factory=list)
    salt: str | None = None


class DraftModel:
    """Loaded draft model. Freed by `close`."""

    def __init__(self, launch: Launch, model: Model, context: Context, *, target_tokens: int) -> None:
        """`target_tokens`: size of the target's vocabulary."""
        self.launch = launch
        self._model = model
        self.context = context
        self.window_tokens = launch.layout.context_tokens
        self.end_tokens = model.vocabulary.end_tokens
        self.vocabulary_size = model.vocabulary.size
        self.tokens_known = min(target_tokens, model.vocabulary.size)  # larger ids mean nothing to one of the two
        self.lanes = [Lane() for _ in range(context.slots)]
        self._batch = Batch(capacity=context.batch_tokens, slots=context.slots)
        self._times = deque[float](maxlen=_TIMES_MAX)

    @property
    def token_s(self) -> float:
        """Median duration of a call with one input."""
        return statistics.median(self._times)

    def evaluate(self, slot_id: int, tokens: list[int], *, guesses: bool) -> int:
        """Append tokens to a lane; return the most likely next one, or -1 if `guesses` is False.

        Raises:
            EngineFailure: the context did not take them; what the lane holds is unknown, and it is emptied.
        """
        lane = self.lanes[slot_id]
        self._batch.clear()
        place = self._batch.add(slot_id, len(lane.held), tokens, wants_logits=guesses)
        began_ns = time.monotonic_ns()
        if self.context.decode(self._batch) != DecodeResult.DONE:
            self.keep(slot_id, 0)
            raise EngineFailure("the draft model's cache has no free cell")
        self.context.synchronize()
        if len(tokens) == 1:
            self._times.append((time.monotonic_ns() - began_ns) / NS_PER_S)
        lane.held += tokens
        return int(self.context.logits(place)[: self.tokens_known].argmax()) if guesses else -1

    def keep(self, slot_id: int, tokens: int) -> None:
        """Erase what a lane holds beyond its first tokens."""
        lane = self.lanes[slot_id]
        if tokens < len(lane.held):
            erased = self.context.erase(slot_id, tokens)
            assert erased, "draft models without a way back are refused"
            del lane.held[tokens:]

    def forget(self, salt: str) -> None:
        """Erase what is held of a tenant; sequences that run are read again."""
        for slot_id, lane in enumerate(self.lanes):
            if lane.salt == salt:
                self.keep(slot_id, 0)

    def try_out(self) -> None:
        """Evaluate the largest call and a few of one token: allocations of a backend, the way back, durations."""
        token_id = 0
        self.evaluate(0, [token_id] * min(self.context.batch_tokens, self.window_tokens - 1), guesses=True)
        self.keep(0, 1)
        for _ in range(_TRIED_CALLS):
            self.evaluate(0, [token_id], guesses=True)
            self.keep(0, 1)
        self.keep(0, 0)

    def close(self) -> None:
        """Free context and weights."""
        self.context.close()
        self._model.close()


def vocabulary_facts(model_pointer: int) -> VocabularyFacts:
    """Return the facts of a model's vocabulary that decide whether ids of two models mean the same."""
    vocab = llama.llama_model_get_vocab(model_pointer)
    return VocabularyFacts(
        kind=llama.llama_vocab_type(vocab),
        begin=llama.llama_vocab_bos(vocab) if llama.llama_vocab_get_add_bos(vocab) else None,
        end=llama.llama_vocab_eos(vocab) if llama.llama_vocab_get_add_eos(vocab) else None,
        texts=[llama.llama_vocab_get_text(vocab, token) for token in range(llama.llama_vocab_n_tokens(vocab))],
    )


def draft_launch(target: Launch) -> Launch | None:
    """Return the launch of a target's draft model; None: it has none.

    Raises:
        PunaError: it cannot be loaded.
    """
    files = target.files.draft
    if not files:
        return None
    header = read_header(*files)
    if pooling_of(header.metadata) is not None:
        raise BadModelFile(f"{files[0].name}: it computes embeddings, and generates no text")
    layout = draft_layout(target.layout, trained_context_tokens=header.numbers.one("context_length"))
    draft = ModelFiles(model=files[0], more=files[1:])
    return prepare_launch(draft, layout, header=header, opened=target.device_pointers)


def draft_parameters(layout: Layout) -> Any:
    """llama_context_params of a draft model: windows keep every cell, so that wrong guesses can be taken back."""
    struct = context_parameters(layout)
    struct.swa_full = True
    return struct


def check_draft(target_pointer: int, draft_pointer: int, name: str, *, rollback_tokens: int) -> None:
    """Check that a draft model can guess for a target, whose recurrent state can go back so many tokens.

    Raises:
        BadModelFile: it cannot.
    """
    recurrent = [draft_pointer] if rollback_tokens else [draft_pointer, target_pointer]
    for pointer in recurrent:
        if llama.llama_model_is_recurrent(pointer) or llama.llama_model_is_hybrid(pointer):
            which = "it" if pointer == draft_pointer else "its target"
            raise BadModelFile(f"{name}: {which} has a recurrent state, which cannot go back behind a wrong guess")
    difference = vocabulary_difference(vocabulary_facts(target_pointer), vocabulary_facts(draft_pointer))
    if difference:
        raise BadModelFile(f"{name}: {difference}")


def open_draft(target: Launch, model: Model, on_progress: Callable[[float], bool]) -> DraftModel | None:
    """Load the draft model of a target; None: it has none.

    Raises:
        PunaError: the target has to do without it.
    """
    launch = draft_launch(target)
    if launch is None:
        return None
    draft = load_launched(launch, on_progress)
    try:
        rollback_tokens = target.layout.rollback_tokens
        check_draft(model.pointer, draft.pointer, launch.files.model.name, rollback_tokens=rollback_tokens)
        context = open_context(launch, draft, draft_parameters(launch.layout), Context)
    except PunaError:
        draft.close()
        raise
    opened = DraftModel(launch, draft, context, target_tokens=model.vocabulary.size)
    try:
        opened.try_out()
    except EngineFailure as error:
        opened.close()
        raise BadModelFile(f"{launch.files.model.name}: {error}") from error
    log.info("draft.ready", file=launch.files.model.name, token_ms=round(opened.token_s * 1000, 3))
    return opened


def draft_memory(draft: DraftModel) -> MemoryUse | None:
    """Return the memory of a loaded draft model; None where the engine cannot tell."""
    try:
        count = count_memory(draft.launch, draft.context.pointer)
    except BreakdownUnavailable:
        return None
    layout = draft.launch.layout
    # Weights that the CPU has rearranged lie in the mapped file as well, and are counted once.
    use = report_layers(draft.launch, layout, count, cells=cache_cells(layout), host_extra_bytes=0)
    return with_rows(use, layout, vocabulary_size=draft.vocabulary_size)


def with_rows(use: MemoryUse, layout: Layout, *, vocabulary_size: int) -> MemoryUse:
    """Add the buffer of logits rows in host RAM, which the engine's own counts leave out."""
    rows = ClassBytes(graph_bytes=layout.output_rows * vocabulary_size * _ROW_VALUE_BYTES)
    return replace(use, host=use.host.plus(rows))

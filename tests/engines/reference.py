"""llama-cpp-python's own `Llama` class behind our interface, one sequence at a time: the oracle of the other engines.

It shares with them what decides (`runner.core`) and nothing that computes: batches, cache and sampling are the class's.
Every sequence is evaluated from an empty cache.
"""

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp._internals import LlamaSampler
from numpy.typing import NDArray

from common.errors import BadModelFile, InvalidRequest
from common.spec.layout import FlashAttention, Layout
from common.spec.sampling import Sampling
from runner.core.layout.layout import ResolvedLayout, cache_cells, resolve_layout
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.sampling import draw_seed, excludes_top_at
from runner.cores import computing_cores
from runner.engine.bindings.library import engine_log, start_engine
from runner.engine.contract.choice import EngineName
from runner.engine.contract.engine import LoadedModel, LoadProgress, weights_progress
from runner.engine.llama.launch import read_header
from runner.engine.llama.model import load_failure
from runner.engine.llama.vocabulary import Vocabulary
from tests.engines.engine import Opened, PlainEngine
from tests.engines.plain_loop import Inputs
from tests.engines.plain_sequence import PlainSequence

ONE_SLOT = "the reference engine runs one sequence at a time; slots is 1"
NO_DEVICES = "the reference engine computes in host memory only; leave the layout's devices empty"
ONE_ADAPTER = "the reference engine takes one adapter at most"
_CACHE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # ggml_type


class ReferenceEngine(PlainEngine):
    """See `runner.engine.contract.engine.Engine`."""

    def __init__(self, files: ModelFiles, layout: Layout) -> None:
        super().__init__()
        self._files = files
        self._layout = layout

    def _open(self, on_progress: Callable[[LoadProgress], None]) -> Opened:
        if self._layout.devices:
            raise InvalidRequest(NO_DEVICES, param="devices")
        if len(self._files.adapters) > 1:
            raise InvalidRequest(ONE_ADAPTER, param="adapters")
        header = read_header(*self._files.weights)
        bytes_total = header.weights_bytes
        on_progress(weights_progress(0.0, bytes_total))
        start_engine()
        engine_log.clear()
        asked = resolve_layout(
            replace(self._layout, slots=1, engine=EngineName.REFERENCE),
            trained_context_tokens=header.numbers.one("context_length"),
            cpu_threads=computing_cores(),
        )
        # The class says nothing while it loads.
        llm = self._load(asked.layout)
        on_progress(weights_progress(1.0, bytes_total))
        vocabulary = Vocabulary(llama_cpp.llama_model_get_vocab(llm.model))
        return Opened(
            backend=ReferenceBackend(llm, asked.layout, vocabulary.size),
            vocabulary=vocabulary,
            suppressed=vocabulary.suppressed,
            model=LoadedModel(
                layout=asked.layout,
                warnings=self._warnings(asked),
                slot_context_tokens=asked.layout.context_tokens,
                weights_bytes=llama_cpp.llama_model_size(llm.model),
                memory=None,
            ),
        )

    def _load(self, layout: Layout) -> llama_cpp.Llama:
        with _as_one_path(self._files.weights) as path:
            return self._load_path(path, layout)

    def _load_path(self, path: Path, layout: Layout) -> llama_cpp.Llama:
        adapter = next(iter(self._files.adapters), None)
        key_type, value_type = (_CACHE_TYPES[name] for name in layout.cache_types)
        try:
            return llama_cpp.Llama(
                str(path),
                lora_path=None if adapter is None else str(adapter.path),
                lora_scale=1.0 if adapter is None else adapter.scale,
                n_ctx=cache_cells(layout),
                n_batch=layout.batch_tokens,
                n_ubatch=layout.batch_tokens,
                n_threads=layout.threads,
                n_threads_batch=layout.threads,
                use_mmap=layout.use_mmap is not False,
                flash_attn=layout.flash_attention is FlashAttention.ON,
                type_k=key_type,
                type_v=value_type,
                no_perf=True,
                verbose=False,
            )
        except ValueError as error:
            raise load_failure(self._files.model, more=self._files.more) from error
        except RuntimeError as error:  # what the class says of an adapter
            raise BadModelFile(str(error)) from error

    def _warnings(self, asked: ResolvedLayout) -> tuple[str, ...]:
        return (*asked.warnings, ONE_SLOT) if self._layout.slots > 1 else asked.warnings


@contextmanager
def _as_one_path(weights: Sequence[Path]) -> Iterator[Path]:
    """The class takes one path, and finds the other files of a split model by their names: give them such names."""
    if len(weights) == 1:
        yield weights[0]
        return
    with tempfile.TemporaryDirectory(prefix="puna-split-") as directory:
        links = [Path(directory) / f"model-{i:05}-of-{len(weights):05}.gguf" for i in range(1, len(weights) + 1)]
        for link, path in zip(links, weights, strict=True):
            link.symlink_to(path.absolute())
        yield links[0]


class ReferenceBackend:
    """One `Llama`."""

    slots = 1
    keeps_prefixes = False
    can_move = False

    def __init__(self, llm: llama_cpp.Llama, layout: Layout, vocabulary_size: int) -> None:
        self.batch_tokens = layout.batch_tokens
        self._llm = llm
        self._row_type = ctypes.c_float * vocabulary_size

    def evaluate(self, step: Sequence[Inputs]) -> list[NDArray[np.float32] | None]:
        """Evaluate the inputs of the one sequence."""
        (inputs,) = step
        if inputs.start == 0:
            self._llm.reset()  # type: ignore[no-untyped-call]
        assert self._llm.n_tokens == inputs.start, "the class holds what the slot holds"
        self._llm.eval(inputs.tokens)
        if not inputs.wants_token:
            return [None]
        return [self._row().copy()]

    def choose(self, sequence: PlainSequence, weighed: NDArray[np.float32]) -> int:
        """Let the class's sampler choose; bias, penalties and grammar are ours, since it forgets between two calls."""
        sampling = sequence.request.sampling
        position = sequence.rules.generated
        seed = draw_seed(sampling.seed, position)
        excludes_top = excludes_top_at(sampling, position)
        if excludes_top or (sampling.dynatemp_range > 0.0 and not sampling.greedy):
            return self._choose_by_chain(sampling, weighed, seed, excludes_top=excludes_top)

        def weigh(_: NDArray[np.intc], scores: NDArray[np.float32]) -> NDArray[np.float32]:
            assert scores.size == weighed.size, "nothing was filtered before"
            return weighed

        self._llm.set_seed(seed)
        token_id: int = self._llm.sample(
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            typical_p=sampling.typical_p,
            temp=max(0.0, sampling.temperature),
            logits_processor=llama_cpp.LogitsProcessorList([weigh]),
        )
        return token_id

    def _choose_by_chain(
        self, sampling: Sampling, weighed: NDArray[np.float32], seed: int, *, excludes_top: bool
    ) -> int:
        """Choose with XTC or a dynamic temperature, which the class's own method lacks and its sampler has."""
        self._row()[:] = weighed
        sampler = LlamaSampler()  # type: ignore[no-untyped-call]
        try:
            sampler.add_top_k(sampling.top_k)
            sampler.add_typical(sampling.typical_p, 1)
            sampler.add_top_p(sampling.top_p, 1)
            sampler.add_min_p(sampling.min_p, 1)
            if excludes_top:
                sampler.add_xtc(1.0, sampling.xtc_threshold, 1, 0)
            sampler.add_temp_ext(sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent)
            sampler.add_dist(seed)
            token_id: int = sampler.sample(self._llm._ctx, -1)
        finally:
            sampler.close()  # type: ignore[no-untyped-call]
        return token_id

    def _row(self) -> NDArray[np.float32]:
        """The engine's own logits float32[vocabulary] of the last input."""
        # The class keeps rows only together with those of the whole prompt.
        address = ctypes.cast(llama_cpp.llama_get_logits_ith(self._llm.ctx, -1), ctypes.c_void_p).value
        assert address, "the last input has a row"
        return np.ctypeslib.as_array(self._row_type.from_address(address))

    def close(self) -> None:
        """Free model and context."""
        self._llm.close()


def open_engine(files: ModelFiles, layout: Layout, _options: str) -> ReferenceEngine:
    """Open the engine, as `runner.engine.opening` does."""
    return ReferenceEngine(files, layout)

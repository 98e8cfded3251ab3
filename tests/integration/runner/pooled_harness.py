"""The real engine for pooled models on a tiny model, driven through its own interface."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from numpy.typing import NDArray

from common.errors import PunaError
from common.spec.layout import DeviceLayers, FlashAttention, Layout
from runner.core.model.model_files import AdapterFile, ModelFiles
from runner.core.pooled.embedding_inputs import frame_input
from runner.core.pooled.pooling import pooling_of
from runner.engine.contract.engine import LoadedModel, LoadProgress, StepReport
from runner.engine.contract.pooling import PooledEnd, PooledReport
from runner.engine.llama.launch import read_header
from runner.engine.pooled.engine import PooledLlamaEngine

DEADLINE_S = 60.0
EMBEDDERS = ["embed_mean", "embed_cls", "embed_last"]
Vector = NDArray[np.float32]


class PooledHarness:
    """Listens to an engine and collects what it says; the engine thread calls it."""

    def __init__(self, path: Path, layout: Layout, adapters: tuple[AdapterFile, ...] = ()) -> None:
        header = read_header(path)
        pooling = pooling_of(header.metadata)
        assert pooling is not None, "not a pooled model"
        self.engine = PooledLlamaEngine(ModelFiles(model=path, adapters=adapters), layout, pooling, header=header)
        self.model: LoadedModel | None = None
        self.failure: BaseException | None = None
        self.reports: list[PooledReport] = []
        self.vectors: dict[int, dict[int, Vector]] = {}
        self.ends: dict[int, PooledEnd] = {}
        self.told = threading.Condition()
        self._next_id = 0

    def load_progressed(self, progress: LoadProgress) -> None:
        """Nobody asks."""

    def loaded(self, model: LoadedModel) -> None:
        with self.told:
            self.model = model
            self.told.notify_all()

    def load_failed(self, error: PunaError) -> None:
        self.died(error)

    def died(self, error: BaseException) -> None:
        with self.told:
            self.failure = error
            self.told.notify_all()

    def stepped(self, report: StepReport) -> None:
        assert isinstance(report, PooledReport)
        with self.told:
            self.reports.append(report)
            for vector in report.vectors:
                self.vectors.setdefault(vector.request_id, {})[vector.input_index] = vector.values
            for end in report.ends:
                assert end.request_id not in self.ends, "a request ended twice"
                self.ends[end.request_id] = end
            self.told.notify_all()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within it the engine stands still, at the latest after its next call: what is told now comes together."""
        with self.told:
            yield

    @property
    def decode_calls(self) -> int:
        return sum(report.decode_calls for report in self.reports)

    def tokens(self, text: str) -> tuple[int, ...]:
        """A framed input of literal text."""
        model = self.engine.pooled_model
        ids = self.engine.vocabulary.tokenize(text.encode(), parse_special=False)
        return frame_input(ids, frame=model.frame, context_tokens=model.input_tokens_max, truncate=False)

    def submit(self, inputs: Sequence[Sequence[int]]) -> int:
        self._next_id += 1
        self.engine.submit_inputs(self._next_id, inputs)
        return self._next_id

    def end(self, request_id: int) -> PooledEnd:
        """Return the end of a request."""
        with self.told:
            assert self.told.wait_for(lambda: request_id in self.ends or self.failure, DEADLINE_S)
            assert self.failure is None
            return self.ends[request_id]

    def compute(self, inputs: Sequence[Sequence[int]]) -> list[Vector]:
        """The vectors of one request that must succeed."""
        request_id = self.submit(inputs)
        assert self.end(request_id).error is None
        return [self.vectors[request_id][index] for index in range(len(inputs))]


@contextmanager
def pooled(
    path: Path,
    *,
    context: int = 512,
    slots: int = 0,
    threads: int = 1,
    flash_attention: FlashAttention = FlashAttention.AUTO,
    adapters: tuple[AdapterFile, ...] = (),
    devices: tuple[DeviceLayers, ...] = (),
) -> Iterator[PooledHarness]:
    """A loaded engine, with one thread for its calls unless asked otherwise."""
    layout = Layout(
        devices=devices, context_tokens=context, slots=slots, threads=threads, flash_attention=flash_attention
    )
    harness = PooledHarness(path, layout, adapters)
    harness.engine.start(harness)
    with harness.told:
        assert harness.told.wait_for(lambda: harness.model or harness.failure, DEADLINE_S)
    try:
        assert harness.failure is None, harness.failure
        yield harness
    finally:
        harness.engine.stop()
        assert harness.engine.join(DEADLINE_S)
        harness.engine.close()
        assert harness.failure is None


def cosine_distance(first: Vector, second: Vector) -> float:
    """1 minus the cosine of the angle between two vectors."""
    one, two = first.astype(np.float64), second.astype(np.float64)
    return 1.0 - float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


class Oracle(llama_cpp.Llama):
    """llama-cpp-python's class with the tokens given instead of found."""

    def __init__(self, path: Path, context: int) -> None:
        super().__init__(
            str(path),
            embedding=True,
            n_ctx=context,
            n_batch=context,
            n_ubatch=context,
            n_threads=1,
            n_threads_batch=1,
            verbose=False,
        )
        self.ids: list[int] = []

    def tokenize(self, *_: Any, **__: Any) -> list[int]:
        return self.ids

    def vector(self, ids: Sequence[int], length: int) -> Vector:
        self.ids = list(ids)
        return np.array(self.embed("")[:length], np.float32)


def poison(path: Path, target: Path, token_id: int) -> Path:
    """A copy of a model in which one token's row is not a number."""
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "token_embd.weight")
    row = tensor.data[token_id]
    content = bytearray(path.read_bytes())
    start = tensor.data_offset + token_id * row.nbytes
    content[start : start + row.nbytes] = np.full_like(row, np.nan).tobytes()
    target.write_bytes(content)
    return target

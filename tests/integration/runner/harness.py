"""A real engine on a tiny model, driven as the server drives it."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PunaError
from common.spec.layout import FlashAttention, Layout
from common.spec.sampling import Sampling
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt
from runner.core.sequence.text_stream import Release, TextToken, check_stop_strings
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, Progressed, Sampled, StepReport
from runner.engine.llama.batch import Batch, RowBatch
from runner.serve.app import Bridge
from runner.serve.streams import Finished, Stream, StreamTable

Result = TypeVar("Result")

# Fused attention comes with cells that all slots share; small models get a cache for each slot otherwise.
CACHES = pytest.mark.parametrize(
    ("attention", "shared"),
    [(FlashAttention.ON, True), (FlashAttention.AUTO, False)],
    ids=["shared cells", "caches of their own"],
)
GREEDY = Sampling(temperature=0.0)
DEADLINE_S = 60.0


@dataclass
class Answer:
    """Everything that one request was told."""

    text: str = ""
    tokens: list[TextToken] = field(default_factory=list)
    progress: list[Progressed] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def end(self) -> Finished:
        assert self.finished is not None
        return self.finished

    @property
    def cached_tokens(self) -> int:
        assert self.end.times is not None
        return self.end.times.cached_tokens

    @property
    def slot_id(self) -> int:
        assert self.end.times is not None
        return self.end.times.slot_id


class Harness(EngineListener):
    """A loaded engine and its streams."""

    def __init__(self, engine: BatchedEngine, *, overlap: bool) -> None:
        self.engine = engine
        self.reports: list[StepReport] = []
        self.progress: list[LoadProgress] = []
        self.model: LoadedModel | None = None
        self.deaths: list[BaseException] = []
        self.on_step: Callable[[StepReport], None] | None = None
        self.rows: dict[
            int, list[NDArray[np.float32]]
        ] = {}  # logits by sequence, where log-probabilities were asked for
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[LoadedModel] = self._loop.create_future()
        self.started = asyncio.Event()
        self.streams = StreamTable(engine)
        self._stepped = asyncio.Event()
        self._bridge = Bridge(self._loop, self, overlap=overlap)

    async def load(self, *, deadline_s: float = DEADLINE_S) -> None:
        self.engine.start(self._bridge)
        self.started.set()
        async with asyncio.timeout(deadline_s):
            self.model = await self._loaded
        self.streams.slots = self.model.layout.slots

    def load_progressed(self, progress: LoadProgress) -> None:
        self.progress.append(progress)

    def loaded(self, model: LoadedModel) -> None:
        self._loaded.set_result(model)

    def load_failed(self, error: PunaError) -> None:
        self._loaded.set_exception(error)

    def died(self, error: BaseException) -> None:
        """On the engine thread."""
        self.deaths.append(error)
        self._loop.call_soon_threadsafe(self._give_up_load, error)

    def _give_up_load(self, error: BaseException) -> None:
        if not self._loaded.done():
            self._loaded.set_exception(error)

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)
        for outcome in report.outcomes:
            if isinstance(outcome, Sampled) and outcome.logits is not None:
                self.rows.setdefault(outcome.sequence_id, []).append(outcome.logits)
        if self.on_step is not None:
            self.on_step(report)
        self.streams.apply(report)
        self._stepped.set()

    @property
    def decode_calls(self) -> int:
        return sum(report.decode_calls for report in self.reports)

    @property
    def shares_cells(self) -> bool:
        """Return True if all slots share the cells of one cache."""
        assert self.engine._loop is not None
        return self.engine._loop._context.shares_cells

    @property
    def encoded(self) -> int:
        """Images that were encoded for requests."""
        assert self.engine.vision.encoder is not None
        return self.engine.vision.encoder.encoded

    def tokens(self, text: str) -> list[int]:
        return self.engine.vocabulary.tokenize(text.encode(), parse_special=True)

    def open(
        self,
        prompt: str | list[int],
        *,
        stops: tuple[str, ...] = (),
        boundaries: tuple[int, ...] = (),
        images: tuple[PreparedImage, ...] = (),
        **fields: Any,
    ) -> Stream:
        ids = self.tokens(prompt) if isinstance(prompt, str) else prompt
        whole = TokenizedPrompt(tuple(ids), boundaries, images)
        request = GenerationRequest(prompt=whole, **{"sampling": GREEDY, **fields})
        return self.streams.open(request, stops=check_stop_strings(stops), visible=frozenset())

    async def read(self, stream: Stream) -> Answer:
        answer = Answer()
        async with asyncio.timeout(DEADLINE_S):
            async for event in stream.events():
                match event:
                    case Release():
                        answer.text += event.text
                        answer.tokens += event.tokens
                        self.streams.drained(stream)
                    case Progressed():
                        answer.progress.append(event)
                    case Finished():
                        answer.finished = event
        return answer

    async def ask(self, prompt: str | list[int], *, stops: tuple[str, ...] = (), **fields: Any) -> Answer:
        return await self.read(self.open(prompt, stops=stops, **fields))

    async def logits(self, prompt: list[int], **fields: Any) -> NDArray[np.float32]:
        """The logits behind a prompt, float32[vocabulary]."""
        stream = self.open(prompt, max_tokens=1, top_logprobs=0, **fields)
        await self.read(stream)
        return self.rows.pop(stream.id)[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, looking again after every step that the engine reports."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._stepped.clear()
                await self._stepped.wait()

    async def idle(self) -> None:
        """Wait until every slot is free."""
        await self.until(lambda: self.streams.inside == 0 and self.streams.slots_busy == 0)

    async def on_engine(self, command: Callable[[], Result]) -> Result:
        """Run a command in the engine thread, between two steps, behind all that was sent there before."""
        done: Future[Result] = Future()
        self.engine.call(lambda: done.set_result(command()))
        return await asyncio.wait_for(asyncio.wrap_future(done), DEADLINE_S)


@asynccontextmanager
async def running(
    path: Path,
    *,
    slots: int = 4,
    context: int = 512,
    batch: int = 512,
    threads: int = 1,
    projector: Path | None = None,
    verify: bool = True,
    draft: Path | None = None,
    **options: Any,
) -> AsyncIterator[Harness]:
    """A loaded engine whose bookkeeping is checked after every step; all slots must be free in the end."""
    names = ("cache_type_k", "cache_type_v", "flash_attention", "rollback_tokens")
    chosen = {"rollback_tokens": 3, **{name: options.pop(name) for name in names if name in options}}
    layout = Layout(slots=slots, context_tokens=context, batch_tokens=batch, threads=threads, **chosen)
    files = ModelFiles(model=path, projector=projector, draft=() if draft is None else (draft,))
    engine = BatchedEngine(files, layout, BatchedOptions(verify=verify, **options))
    harness = Harness(engine, overlap=options.get("overlap", True))
    await harness.load()
    try:
        yield harness
        if not harness.deaths:
            await harness.idle()
    finally:
        engine.stop()
        assert await asyncio.to_thread(engine.join, DEADLINE_S)
        engine.close()
        assert harness.deaths == []


def watch_decoding(engine: Harness) -> list[int]:
    """Record the result of every later call of llama_decode."""
    assert engine.engine._loop is not None
    context, answers = engine.engine._loop._context, list[int]()
    decode = context.decode

    def watched(batch: Batch | RowBatch) -> int:
        answers.append(decode(batch))
        return answers[-1]

    context.decode = watched  # type: ignore[method-assign]
    return answers


def stand_at(engine: Harness, call: int) -> threading.Event:
    """From now on: the engine's thread stands at this call of llama_decode until the event is set."""
    assert engine.engine._loop is not None
    context, calls, goes_on = engine.engine._loop._context, itertools.count(1), threading.Event()
    decode = context.decode

    def standing(batch: Batch | RowBatch) -> int:
        if next(calls) == call:
            assert goes_on.wait(DEADLINE_S)
        return decode(batch)

    context.decode = standing  # type: ignore[method-assign]
    return goes_on


async def refused(attempt: Any) -> PunaError:
    """The domain error that an attempt ends with."""
    try:
        await attempt
    except PunaError as error:
        return error
    raise AssertionError("was not refused")


def assert_equals_cold(warm: NDArray[np.float32], cold: NDArray[np.float32], *, tolerance: float = 0.005) -> None:
    """Equal but for rounding, as a share of the largest magnitude: other batch shapes take other kernels."""
    assert float(np.abs(warm - cold).max()) <= tolerance * float(np.abs(cold).max())

"""A runner: the real servicer, streams, status and engine loop; only llama.cpp's context is a formula."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from common.closing import closing
from common.errors import RunnerLost
from protos import cluster_pb2, runner_pb2
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest, check_request, prepare_prompt
from runner.core.sequence.slots import MemoryRules, SlotPolicy
from runner.core.threads.step_times import EngineStep, StepTimes
from runner.engine.batched.loop import BatchedOptions, Loop
from runner.engine.batched.sampling_pool import SamplingPool
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import SlotTable
from runner.engine.contract.engine import LoadProgress, StepReport, refuse_image
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import DecodeResult
from runner.engine.threads.spinning import ComputeThreads
from runner.serve.compute_threads import ThreadSetting
from runner.serve.servicer import RunnerServicer
from runner.serve.status import StatusBoard
from runner.serve.streams import StreamTable
from tests.simulation.cluster.discovery_process import CONTEXT
from tests.simulation.cluster.network import Network, Process

VOCABULARY = 64
END = 0  # the end token
_MASK = (1 << 64) - 1
_END_SHARE = 97  # one state of so many ends an answer
SILENT_AFTER_S = 2.5  # two missed pings (`runner/host/runners/runner_link.py`)
HUNG_AFTER_S = 10.0


def next_state(state: int, token: int) -> int:
    """Return the state behind a token: a function of every token before it, and of their order."""
    return (state * 6364136223846793005 + (token + 1) * 1442695040888963407) & _MASK


def choice_of(state: int) -> int:
    """Return the token that the model says in a state."""
    return END if (state >> 20) % _END_SHARE == 0 else 1 + (state >> 33) % (VOCABULARY - 1)


def expected_answer(prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """Return the tokens of the undisturbed answer, without the end token."""
    state, answer = 0, list[int]()
    for token in prompt:
        state = next_state(state, token)
    while len(answer) < max_tokens and (token := choice_of(state)) != END:
        answer.append(token)
        state = next_state(state, token)
    return answer


class Vocabulary:
    """One byte for each token; the first one ends an answer."""

    size = VOCABULARY
    pieces: ClassVar = [b"", *(bytes([0x20 + token]) for token in range(1, VOCABULARY))]
    control = frozenset({END})
    end_tokens = frozenset({END})
    suppressed = frozenset[int]()
    bos = END
    adds_bos = False

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        """Token ids of text."""
        return [byte - 0x20 for byte in text]

    def detokenize(self, ids: list[int]) -> bytes:
        """The bytes of tokens."""
        return b"".join(self.pieces[token] for token in ids)


class FormulaContext:
    """Towards the loop as `runner.engine.llama.context.Context`; a cell holds the state behind its token."""

    can_shift = shares_cells = True
    gives_slices = False  # no state is saved in these scenarios
    spare_ids = range(0)
    pointer = 0
    embedding = 1

    def __init__(self, *, cells: int, slots: int, batch_tokens: int) -> None:
        self.cells = cells
        self.slots = slots
        self.batch_tokens = self.ubatch_tokens = self.outputs_max = batch_tokens
        self._held: list[list[int]] = [[] for _ in range(slots)]
        self._rows: dict[int, int] = {}

    def decode(self, batch: Batch) -> int:
        """Evaluate a call."""
        if sum(map(len, self._held)) + batch.size > self.cells:
            return DecodeResult.NO_CELLS
        self._rows = {}
        addresses = batch._slot_addresses
        tokens, positions = batch._tokens.tolist(), batch._positions.tolist()
        slots, wanted = batch._sequences.tolist(), batch._wanted.tolist()
        for index in range(batch.size):
            held = self._held[addresses.index(slots[index])]
            assert positions[index] == len(held), "positions of a sequence are consecutive"
            held.append(next_state(held[-1] if held else 0, tokens[index]))
            if wanted[index]:
                self._rows[index] = choice_of(held[-1])
        return DecodeResult.DONE

    def synchronize(self) -> None:
        """The result is there at once."""

    def logits(self, index: int) -> NDArray[np.float32]:
        """Return the row of an output."""
        row = np.zeros(VOCABULARY, np.float32)
        row[self._rows[index]] = 1.0
        return row

    def erase(self, slot_id: int, start: int, stop: int = -1) -> bool:
        """Forget the end of a slot."""
        assert stop < 0, "no answer of these scenarios shifts its context"
        del self._held[slot_id][start:]
        return True

    def take_back(self, slot_id: int, start: int) -> bool:
        """Forget wrong guesses of a slot's last call."""
        return self.erase(slot_id, start)

    def is_taken_back(self, _: int) -> bool:
        """Return False: a cell holds its own state."""
        return False

    def copy(self, source_id: int, target_id: int, stop: int) -> None:
        """Take over the beginning of another slot."""
        self._held[target_id] = self._held[source_id][:stop]

    def first_position(self, slot_id: int) -> int:
        """Return the oldest position."""
        return 0 if self._held[slot_id] else -1

    def last_position(self, slot_id: int) -> int:
        """Return the newest position."""
        return len(self._held[slot_id]) - 1


class _NoTimes(StepTimes):
    """A call takes no time here, the pause after it does."""

    def see(self, inputs: int, seconds: float, *, prompt_inputs: int = 0) -> None:
        """Learn nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Durations of a runner."""

    load_s: float = 2.0
    step_s: float = 0.02


class FormulaEngine:
    """See `runner.engine.contract.engine.Engine`: the batched loop, run by a task instead of a thread."""

    vocabulary = Vocabulary()

    def __init__(self, layout: cluster_pb2.Layout) -> None:
        slots = layout.slots
        self.context_tokens = layout.context_tokens
        context: Any = FormulaContext(cells=slots * layout.context_tokens, slots=slots, batch_tokens=64)
        self.table = SlotTable(context, policy=SlotPolicy.BEST, rules=MemoryRules())
        self.listener: Any = self  # until the streams are there
        threads = ComputeThreads(lambda *_: None, threads=1, keeps_lone=False)
        pool = SamplingPool(context, vocabulary_size=VOCABULARY, threads=0)
        listener: Any = self  # of the steps alone
        self.loop = Loop(
            context, self.table, listener, BatchedOptions(verify=True), None, threads, _NoTimes(on_devices=True), pool,
            batch_tokens=64,
        )  # fmt: skip
        self.wake = asyncio.Event()
        self.seeds: set[int] = set()  # of the sequences that came so far

    @property
    def step(self) -> EngineStep:
        """Current step."""
        return self.loop.step

    def stepped(self, report: StepReport) -> None:
        """Pass on what happened."""
        self.listener.apply(report)

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:
        """Run a request."""
        check_request(request, vocabulary_size=VOCABULARY)
        nothing: frozenset[int] = frozenset()
        prepared = prepare_prompt(request, slot_context_tokens=self.context_tokens, adds_bos=False)
        sequence = Sequence(
            sequence_id, request, prepared, end_tokens=self.vocabulary.end_tokens, suppressed=nothing, repeats_max=0
        )
        if request.sampling.seed is not None:
            self.seeds.add(request.sampling.seed)
        self.loop.submit(sequence)
        self.wake.set()

    def cancel(self, sequence_id: int) -> None:
        """Free a slot."""
        self.loop.cancel(sequence_id)
        self.wake.set()

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """End a sequence behind a stop string."""
        self.loop.cut(sequence_id, generated_tokens)
        self.wake.set()

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Leave a sequence out."""
        self.loop.pause(sequence_id, paused)
        self.wake.set()

    def read_image(self, data: bytes) -> PreparedImage:
        """Refuse it."""
        return refuse_image(data)

    def use_threads(self, count: int) -> None: ...


class RunnerProcess(Process):
    """One life of a placement."""

    def __init__(
        self,
        network: Network,
        place: str,
        record: cluster_pb2.RunnerRecord,
        pace: Pace,
        *,
        poison_seed: int,
        on_poisoned: Callable[["RunnerProcess", list[int]], None],
    ) -> None:
        """Seeds from `poison_seed` on end the process with their first step.

        Then `on_poisoned` gets their numbers, without requests that a gateway has given up here: it does not learn that
        the runner computed them all the same.
        """
        placement = record.placement
        super().__init__(network, f"runner {placement.placement_id}.{placement.generation}", place)
        self.record = record
        self.pace = pace
        self.poison_seed = poison_seed
        self.on_poisoned = on_poisoned
        self.calls = 0  # of Generate, open on this side
        self.wanted: set[int] = set()  # seeds of the calls that gateways have not given up
        self.engine = FormulaEngine(record.layout)
        engine: Any = self.engine
        self.streams = StreamTable(engine)
        self.streams.slots = record.layout.slots
        self.board = StatusBoard(self.clock, self.streams, ThreadSetting(engine, asked=1))
        self.engine.listener = self.streams
        self.servicer = RunnerServicer(engine, self.streams, self.board, runner_pb2.RunnerInfo(placement=placement))
        self.spawn(self._load(), "load")

    async def _load(self) -> None:
        parts = 5
        total = self.record.status.load_bytes_total
        for part in range(parts):
            self.board.progressed(LoadProgress(part / parts, total * part // parts, total))
            await asyncio.sleep(self.pace.load_s / parts)
            await self.awake()
        self.board.memory = self.record.status.memory
        self.board.progressed(LoadProgress(1.0, total, total))
        self.board.ready()
        await self._serve()

    async def _serve(self) -> None:
        """Run the engine: a step, then its time."""
        while True:
            self.engine.wake.clear()
            if self.engine.loop.turn():
                self.network.events += 1
                await asyncio.sleep(self.pace.step_s)
                if poison := [seed for seed in self.engine.seeds if seed >= self.poison_seed]:
                    self.kill()
                    self.on_poisoned(self, [seed - self.poison_seed for seed in poison if seed in self.wanted])
                    return
            else:
                await self.engine.wake.wait()
            await self.awake()

    async def generate(self, request: runner_pb2.GenerateRequest) -> AsyncIterator[runner_pb2.GenerateEvent]:
        """Stream one sequence, and count the calls that are open."""
        self.calls += 1
        try:
            async with closing(self.servicer.Generate(request, CONTEXT)) as events:
                async for event in events:
                    yield event
        finally:
            self.calls -= 1

    def report(self) -> cluster_pb2.RunnerRecord:
        """Return the record as its host reports it."""
        record = cluster_pb2.RunnerRecord()
        record.CopyFrom(self.record)
        record.status.CopyFrom(self.board.snapshot())
        if not self.alive:
            record.status.state = cluster_pb2.RUNNER_STATE_ERROR
            record.status.error.reason, record.status.error.message = RunnerLost.reason, "the runner ended: signal 9"
        elif self.silent_s > SILENT_AFTER_S:
            record.status.state = cluster_pb2.RUNNER_STATE_NOT_RESPONDING
        return record

    @property
    def silent_s(self) -> float:
        """Return the time for which it has been stopped."""
        return 0.0 if self.paused_since_s is None else self.network.loop.time() - self.paused_since_s

"""A context without llama.cpp: cells are counted, the next token is a function of the last one."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.spec.sampling import Sampling
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt, prepare_prompt
from runner.core.sequence.slots import MemoryRules, SlotPolicy
from runner.core.threads.step_times import StepTimes
from runner.engine.batched.loop import BatchedOptions, Loop
from runner.engine.batched.media_rows import MediaRows
from runner.engine.batched.sampling_pool import SamplingPool
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import SlotTable
from runner.engine.contract.engine import Failed, Freed, LoadedModel, LoadProgress, Outcome, Sampled, StepReport
from runner.engine.llama.batch import Batch, RowBatch
from runner.engine.llama.context import DecodeResult, StatePart
from runner.engine.media.media_encoder import EncodingJob
from runner.engine.media.media_store import MediaStore
from runner.engine.threads.spinning import ComputeThreads
from tests.unit.runner.state_bytes import positions_in, state_of

VOCABULARY = 64


class SimulatedContext:
    """Behaves like `runner.engine.llama.context.Context` towards the loop."""

    def __init__(self, *, cells: int, slots: int, batch_tokens: int = 32, gives_slices: bool = False) -> None:
        self.gives_slices = gives_slices
        self.spare_ids = range(slots, 255 if gives_slices else slots)
        self.slices = 0  # that were copied
        self.cells = cells
        self.slots = slots
        self.batch_tokens = batch_tokens
        self.can_shift = True
        self.shares_cells = True
        self.pointer = 0
        self.embedding = 1
        self.ubatch_tokens = self.outputs_max = batch_tokens
        self.causal = True
        self.row_calls: list[int] = []  # indices of calls that held rows of images
        self.whole_calls: list[int] = []  # of those, the ones whose inputs all see each other
        self.calls: list[list[tuple[int, int, int]]] = []  # (slot, position, token) of each successful call
        self.refused = 0
        # Of each slot or spare id: position -> cell.
        self._held: dict[int, dict[int, int]] = defaultdict(dict)
        self._next_cell = 0
        self._rows: dict[int, NDArray[np.float32]] = {}

    @property
    def cells_used(self) -> int:
        return len({cell for held in self._held.values() for cell in held.values()})

    def set_causal(self, causal: bool) -> None:
        self.causal = causal

    def decode(self, batch: Batch | RowBatch) -> int:
        assert 0 < batch.size <= self.batch_tokens
        if self.cells_used + batch.size > self.cells:
            self.refused += 1
            return DecodeResult.NO_CELLS
        entries = []
        self._rows = {}
        for index in range(batch.size):
            slot_id = int(batch._slot_addresses.index(int(batch._sequences[index])))
            position = int(batch._positions[index])
            token = int(batch._rows[index, 0]) if isinstance(batch, RowBatch) else int(batch._tokens[index])
            assert position == self.last_position(slot_id) + 1, "positions of a sequence are consecutive"
            self._held[slot_id][position] = self._next_cell
            self._next_cell += 1
            entries.append((slot_id, position, token))
            if batch._wanted[index]:
                row = np.zeros(VOCABULARY, np.float32)
                row[(token + 1) % VOCABULARY] = 1.0
                self._rows[index] = row
        if isinstance(batch, RowBatch):
            self.row_calls.append(len(self.calls))
            if not self.causal:
                self.whole_calls.append(len(self.calls))
        self.calls.append(entries)
        return DecodeResult.DONE

    def synchronize(self) -> None:
        """The result is there at once."""

    def logits(self, index: int) -> NDArray[np.float32]:
        return self._rows[index]

    def erase(self, slot_id: int, start: int, stop: int = -1) -> bool:
        end = stop if stop >= 0 else 1 << 30
        self._held[slot_id] = {at: cell for at, cell in self._held[slot_id].items() if not start <= at < end}
        return True

    def take_back(self, slot_id: int, start: int) -> bool:
        called = {position for slot, position, _ in self.calls[-1] if slot == slot_id}
        assert all(at in called for at in self._held[slot_id] if at >= start), "more than the last call evaluated"
        return self.erase(slot_id, start)

    def is_taken_back(self, _: int) -> bool:
        return False

    def copy(self, source_id: int, target_id: int, stop: int) -> None:
        assert not self._held[target_id]
        self._held[target_id] = {at: cell for at, cell in self._held[source_id].items() if at < stop}

    def is_finished(self, _: int) -> bool:
        return True

    def state_bytes(self, slot_id: int, part: StatePart) -> int:
        return self.save(slot_id, part).size

    def save(self, slot_id: int, _: StatePart) -> NDArray[np.uint8]:
        return state_of(sorted(self._held[slot_id]))

    def save_slice(self, slot_id: int, start: int, stop: int) -> NDArray[np.uint8]:
        assert self.gives_slices
        self.slices += 1
        return state_of([at for at in sorted(self._held[slot_id]) if start <= at < stop], slot=255)

    def restore(self, slot_id: int, data: NDArray[np.uint8], _: StatePart) -> bool:
        assert not self._held[slot_id], "states go into empty slots"
        positions = positions_in(data)
        if self.cells_used + len(positions) > self.cells:
            return False
        self._held[slot_id] = {at: self._next_cell + index for index, at in enumerate(positions)}
        self._next_cell += len(positions)
        return True

    def move(self, slot_id: int, start: int, stop: int, distance: int) -> None:
        held = self._held[slot_id]
        moved = {cell for at, cell in held.items() if start <= at < stop}
        for other, cells in self._held.items():
            assert other == slot_id or not moved & set(cells.values()), "shared cells were moved"
        self._held[slot_id] = {at + distance if start <= at < stop else at: cell for at, cell in held.items()}

    def first_position(self, slot_id: int) -> int:
        return min(self._held[slot_id], default=-1)

    def last_position(self, slot_id: int) -> int:
        return max(self._held[slot_id], default=-1)


class Recorder:
    """A listener that keeps everything, and acts after chosen steps."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.reports: list[StepReport] = []
        self.freed: set[int] = set()

    def stepped(self, report: StepReport) -> None:
        self.reports.append(report)
        self.outcomes += report.outcomes
        self.freed |= {outcome.sequence_id for outcome in report.outcomes if isinstance(outcome, Freed)}

    def load_progressed(self, progress: LoadProgress) -> None: ...

    def loaded(self, model: LoadedModel) -> None: ...

    def load_failed(self, error: Exception) -> None: ...

    def died(self, error: BaseException) -> None: ...

    def tokens(self, sequence_id: int) -> list[int]:
        return [
            outcome.token_id
            for outcome in self.outcomes
            if isinstance(outcome, Sampled) and outcome.sequence_id == sequence_id
        ]

    def failures(self) -> dict[int, Exception]:
        return {outcome.sequence_id: outcome.error for outcome in self.outcomes if isinstance(outcome, Failed)}


class _NoTimes(StepTimes):
    """Simulated calls take no time: what they took of the test's decides nothing."""

    def see(self, inputs: int, seconds: float, *, prompt_inputs: int = 0) -> None:
        pass


class Simulation:
    """The real loop over a simulated context, run step by step in the test's thread."""

    def __init__(
        self,
        *,
        cells: int = 1024,
        slots: int = 4,
        slot_tokens: int | None = None,
        batch_tokens: int = 32,
        rules: MemoryRules | None = None,
        whole_images: bool = False,
        copies_bytes_max: int = 0,
        slices: bool = False,
        **options: Any,
    ) -> None:
        """`slices`: states are copied by four inputs at a time."""
        self.context = SimulatedContext(cells=cells, slots=slots, batch_tokens=batch_tokens, gives_slices=slices)
        self.slot_tokens = slot_tokens or cells // slots
        self.recorder = Recorder()
        context: Any = self.context
        self.table = SlotTable(
            context, policy=SlotPolicy.BEST, rules=rules or MemoryRules(), copies_bytes_max=copies_bytes_max
        )
        if slices:
            copies: Any = self.table.copies
            copies.delays, copies.slice_tokens = lambda _: True, lambda _: 4
        listener: Any = self.recorder
        self.jobs: list[EncodingJob] = []  # images that somebody has to encode
        self.store = MediaStore(self.jobs.append)
        self.media = MediaRows(context, self.store, components=1, whole=whole_images, batch_tokens=batch_tokens)
        threads = ComputeThreads(lambda *_: None, threads=1, keeps_lone=False)
        pool = SamplingPool(context, vocabulary_size=VOCABULARY, threads=0)
        self.loop = Loop(
            context,
            self.table,
            listener,
            BatchedOptions(verify=True, **options),
            self.media,
            threads,
            _NoTimes(on_devices=True),
            pool,
            batch_tokens=batch_tokens,
        )
        self._ids = 0

    def submit(self, inputs: list[int], *, images: tuple[PreparedImage, ...] = (), **fields: Any) -> int:
        self._ids += 1
        fields = {"sampling": Sampling(temperature=0.0), "ignore_eos": True, **fields}
        request = GenerationRequest(prompt=TokenizedPrompt(tuple(inputs), images=images), **fields)
        prepared = prepare_prompt(request, slot_context_tokens=self.slot_tokens, adds_bos=False)
        nothing: frozenset[int] = frozenset()
        sequence = Sequence(self._ids, request, prepared, end_tokens=nothing, suppressed=nothing, repeats_max=0)
        self.loop.submit(sequence)
        return self._ids

    def turn(self) -> bool:
        """One turn of the loop; False if there was nothing to decode."""
        return self.loop.turn()

    def run(self, turns_max: int = 10_000) -> None:
        for _ in range(turns_max):
            if not self.turn():
                return
        raise AssertionError("the loop does not come to rest")

    def stop(self) -> None:
        self.loop.stop()
        self.loop.run()

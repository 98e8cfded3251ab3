"""Images inside the engine's loop: which sequence waits for rows, which rows come next, where they lie."""

from runner.core.sequence.batching import BatchRow
from runner.core.sequence.inputs import holds_media, leading_segment, read_row, units_in
from runner.core.sequence.media import EncodedImage
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot
from runner.engine.llama.batch import RowBatch
from runner.engine.llama.context import Context, DecodeResult, EngineFailure
from runner.engine.media.media_store import MediaStore


class MediaRows:
    """Owned by the engine thread. The loop asks it only about sequences that have images ahead."""

    def __init__(self, context: Context, store: MediaStore, *, components: int, whole: bool, batch_tokens: int) -> None:
        """`whole` models see all rows of an image at once; `components` is how many numbers a position has."""
        self._context = context
        self._whole = whole
        self.store = store
        self.batch = RowBatch(
            capacity=context.batch_tokens,
            slots=context.slots,
            embedding=context.embedding,
            components=components,
        )
        # Attention that is not causal is computed in one piece.
        self.rows_max = min(batch_tokens, context.ubatch_tokens) if whole else batch_tokens

    def warm_up(self, encoded: EncodedImage) -> None:
        """Evaluate as many rows as a call ever holds and forget them.

        Raises:
            EngineFailure: the engine cannot do that.
        """
        unit = max(encoded.units, key=lambda each: each.rows.shape[0])
        count = min(unit.rows.shape[0], self.batch.capacity if self._whole else self.rows_max)
        self.batch.clear()
        self.batch.add(0, 0, unit, 0, count, wants_logits=True)
        if self.decode() != DecodeResult.DONE:
            raise EngineFailure("the first decode of an image found no cells")
        self._context.synchronize()
        self._context.erase(0, 0)

    def begin(self, sequence: Sequence) -> None:
        """Start encoding the images of a sequence with a slot, while the text before them is evaluated."""
        for _, unit in units_in(sequence.pending):
            image, part = sequence.images[unit.key]
            self.store.unit(image, part, sequence.id)

    def demand(self, slot: Slot, sequence: Sequence, room: int) -> BatchRow | None:
        """Return the next inputs of a sequence: tokens up to an image, or rows of one; None: they are not there yet."""
        pending = sequence.pending
        segment = leading_segment(pending)
        room = min(room, segment.inputs)
        passed, tenant = sequence.passed_tokens, sequence.request.cache_salt
        if segment.row is None:
            return BatchRow(slot.id, len(pending), room, False, (), passed, tenant)
        image, part = sequence.images[segment.row.unit.key]
        if self.store.unit(image, part, sequence.id) is None:
            return None
        units = (segment.inputs,) if segment.row.unit.whole else ()
        return BatchRow(slot.id, len(pending), room, False, units, passed, tenant)

    def add(self, slot: Slot, sequence: Sequence, row: BatchRow) -> int:
        """Put rows into the batch; return the index of the last one."""
        first = read_row(sequence.pending[0])
        image, part = sequence.images[first.unit.key]
        unit = self.store.unit(image, part, sequence.id)
        assert unit is not None, "planned without its rows"
        start = len(slot.held) - slot.excess
        return self.batch.add(slot.id, start, unit, first.row, row.tokens, wants_logits=row.complete)

    def decode(self) -> int:
        """Evaluate the batch; see `Context.decode`."""
        self.batch.seal()
        if not self._whole:
            return self._context.decode(self.batch)
        self._context.set_causal(False)
        try:
            return self._context.decode(self.batch)
        finally:
            self._context.set_causal(True)

    def book(self, slot: Slot, sequence: Sequence, count: int) -> None:
        """`count` inputs of a sequence with images ahead are in the cache now."""
        last = slot.held[-1]
        if last >= 0:
            return
        slot.excess += count
        place = read_row(last)
        if place.row + 1 < place.unit.rows:
            return
        slot.excess -= place.unit.positions
        sequence.media_ahead = holds_media(sequence.pending)
        image, _ = sequence.images[place.unit.key]
        if not any(sequence.images[unit.key][0].hash == image.hash for _, unit in units_in(sequence.pending)):
            self.store.leave(image, sequence.id)

"""Copies of recurrent states and sliding windows, which cannot go back. Kept by slot, bounded in number and bytes."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from common.telemetry.logs import get_logger
from runner.core.sequence.checkpoints import surplus_checkpoints
from runner.core.states.slices import UnknownFormat
from runner.engine.llama.context import Context, StatePart

log = get_logger()

# Fewer copies than this in the memory given are of no use to several slots.
COPIES_MIN = 4


class CheckpointStore:
    """Checkpoints of each slot and parked prompt. Only the engine thread may use it."""

    def __init__(self, context: Context, *, bytes_max: int) -> None:
        """`bytes_max` 0 turns checkpoints off."""
        self._context = context
        self._bytes_max = bytes_max
        # By slot, then by inputs; the copies are never changed, so slots that forked share them.
        self._saved: dict[int, dict[int, NDArray[np.uint8]]] = {}
        self.enabled = bytes_max > 0

    def places(self, slot_id: int) -> tuple[int, ...]:
        """After how many inputs a slot was saved."""
        return tuple(self._saved.get(slot_id, ()))

    def save(self, slot_id: int, tokens: int, *, position: int | None = None) -> None:
        """Save what a slot held after `tokens` inputs; `position`: of the next one, where it holds more by now."""
        size_bytes = self._context.state_bytes(slot_id, StatePart.PARTIAL)
        if size_bytes > self._bytes_max // COPIES_MIN:
            self.enabled = False  # large windows: copying them would cost more than it saves
            log.info("checkpoint.too_large", bytes=size_bytes)
            return
        try:
            if position is None:
                data = self._context.save(slot_id, StatePart.PARTIAL)
            elif self._context.gives_slices:
                data = self._context.save_window(slot_id, position)
            else:
                return  # an earlier place of the same call has shown another format
        except UnknownFormat as unknown:
            self._context.gives_slices = False
            log.info("checkpoint.unknown_format", detail=str(unknown))
            return
        if data.size == 0:
            return
        saved = self._saved.setdefault(slot_id, {})
        saved[tokens] = data
        for surplus in surplus_checkpoints(tuple(saved)):
            del saved[surplus]
        self._make_room()

    def restore(self, slot_id: int, *, source_id: int, tokens: int) -> bool:
        """Put the copy of another or the same slot back."""
        return self._context.restore(slot_id, self._saved[source_id][tokens], StatePart.PARTIAL)

    def fork(self, source_id: int, copy_id: int, tokens: int) -> None:
        """`copy_id` now holds the first `tokens` inputs of `source_id`."""
        saved = {place: data for place, data in self._saved.get(source_id, {}).items() if place <= tokens}
        if saved:
            self._saved[copy_id] = saved

    def copies(self, slot_id: int) -> dict[int, NDArray[np.uint8]]:
        """Return a slot's copies by inputs; they never change."""
        return dict(self._saved.get(slot_id, {}))

    def adopt(self, slot_id: int, copies: Mapping[int, NDArray[np.uint8]]) -> None:
        """Own copies that were made elsewhere; only if checkpoints are taken here, too."""
        if copies and self.enabled:
            self._saved[slot_id] = {tokens: data.copy() for tokens, data in copies.items()}
            self._make_room()

    def cut(self, slot_id: int, kept_tokens: int) -> None:
        """Drop a slot's saves beyond `kept_tokens`."""
        saved = self._saved.get(slot_id)
        if saved is None:
            return
        for place in [place for place in saved if place > kept_tokens]:
            del saved[place]
        if not saved:
            del self._saved[slot_id]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all copies; those that slots share count once."""
        return sum({id(data): data.size for saved in self._saved.values() for data in saved.values()}.values())

    def _make_room(self) -> None:
        """Drop the slots' oldest copies until the rest fits."""
        while self.size_bytes > self._bytes_max:
            slot_id = max(self._saved, key=lambda candidate: len(self._saved[candidate]))
            place = min(self._saved[slot_id])
            del self._saved[slot_id][place]
            log.info("checkpoint.dropped", slot=slot_id, tokens=place)
            if not self._saved[slot_id]:
                del self._saved[slot_id]

"""Prompts of idle slots, moved from the cache to host RAM.

In a unified cache every token looks at the mask of every cell that is used, idle ones too: 10,000 idle cells made a
step of a small model half as long again. Moving an idle prompt out and back costs a copy, computing it again far more.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.telemetry.logs import get_logger
from runner.core.sequence.slots import SlotView
from runner.engine.llama.context import Context, StatePart

log = get_logger()

# So many idle cells cost too little to notice.
IDLE_CELLS_MAX = 1024
# All of a prompt is copied back, even if only its beginning is wanted. Copying an input is at least so many times
# faster than computing it.
COPY_SPEEDUP = 16
WORTH_TOKENS_MIN = 32
# Only the newest ones are reported.
TOLD_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedPrompt:
    """The inputs of a slot and the state that they left in its cells."""

    id: int
    inputs: list[int]
    state: NDArray[np.uint8]
    sequence_id: int | None  # of the prompt that it begins with; None: of none
    salt: str  # of that request


class ParkingLot:
    """Parked prompts, oldest first, bounded in bytes. Only the engine thread may use it."""

    def __init__(self, context: Context, *, bytes_max: int) -> None:
        """`bytes_max` 0 turns parking off."""
        self._context = context
        self._bytes_max = bytes_max
        self._prompts: dict[int, ParkedPrompt] = {}
        self._next_id = context.slots  # ids of slots and of parked prompts never meet
        self.enabled = bytes_max > 0

    def views(self) -> list[SlotView]:
        """Return the parked prompts as sources of a prefix; no sequence can run in them."""
        return [
            SlotView(
                slot_id=parked.id,
                held=parked.inputs,
                busy=True,
                last_used=0,
                worth_tokens=max(WORTH_TOKENS_MIN, len(parked.inputs) // COPY_SPEEDUP),
                salt=parked.salt,
            )
            for parked in self._prompts.values()
        ]

    @property
    def holders(self) -> tuple[int, ...]:
        """Sequences whose prompts are parked from the beginning on, the newest first."""
        known = [parked.sequence_id for parked in reversed(self._prompts.values()) if parked.sequence_id is not None]
        return tuple(known[:TOLD_MAX])

    def park(self, slot_id: int, inputs: list[int], *, sequence_id: int | None, salt: str = "") -> bool:
        """Copy what a slot holds; False if it is too large to be moved. `sequence_id`: whose prompt it begins with."""
        if self._context.state_bytes(slot_id, StatePart.ALL) > self._bytes_max // 2:
            return False
        state = self._context.save(slot_id, StatePart.ALL)
        if state.size == 0:
            return False
        # A conversation that went on replaces its own beginning.
        for known in list(self._prompts.values()):
            if known.salt == salt and known.inputs == inputs[: len(known.inputs)]:
                del self._prompts[known.id]
        self._prompts[self._next_id] = ParkedPrompt(
            id=self._next_id, inputs=list(inputs), state=state, sequence_id=sequence_id, salt=salt
        )
        self._next_id += 1
        while sum(parked.state.size for parked in self._prompts.values()) > self._bytes_max:
            del self._prompts[next(iter(self._prompts))]
        log.info("slot.parked", slot=slot_id, tokens=len(inputs), bytes=state.size)
        return True

    def unpark(self, parked_id: int, slot_id: int, tokens: int, stop: int) -> bool:
        """Put the first inputs, up to position `stop`, into an empty slot; False leaves the slot empty."""
        parked = self._prompts[parked_id]
        restored = self._context.restore(slot_id, parked.state, StatePart.ALL)
        if restored and (tokens == len(parked.inputs) or self._context.erase(slot_id, stop)):
            if tokens == len(parked.inputs):
                del self._prompts[parked_id]  # the slot holds all of it now
            return True
        self._context.erase(slot_id, 0)
        return False

"""Contract of the engine with a store of states outside its process. No store is imported here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.core.states.gate import RestoreGate, Tier
from runner.core.states.slices import Whole

StateBytes = NDArray[np.uint8]


class StateOffer(NamedTuple):
    """A saved state that begins as a prompt does. `tokens` of its inputs are known to be equal."""

    key: str
    tokens: int
    size_bytes: int
    tier: Tier
    inputs: int  # of the state
    saved_s: float  # to compute all of it again, as measured where it was saved; 0: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state as it came back; the arrays are read-only."""

    key: str
    inputs: list[int]
    state: StateBytes
    checkpoints: Mapping[int, StateBytes]
    first_position: int
    size_bytes: int


class StateBuffer(Whole, Protocol):
    """Room for one state in a store, written in pieces or as an array. `OSError`: no memory for a piece."""

    @property
    def array(self) -> StateBytes:
        """All of it; the first use of a buffer that was reserved for pieces takes long."""

    def close(self) -> None:
        """Give it back without storing anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewState:
    """A state to be stored, in a buffer of the store."""

    key: str
    buffer: StateBuffer
    inputs: Sequence[int]
    salt: str
    links: tuple[bytes, ...]  # see `runner.core.states.chain`
    epoch: int  # of the store, when it was copied
    state_bytes: int  # at the beginning of the buffer
    checkpoints: Sequence[tuple[int, int]] = ()  # inputs and bytes of each, behind the state, in order
    first_position: int = 0
    saved_s: float = 0.0  # to compute it again; 0: not measured
    replaces: str = ""  # key of a state that this one continues
    prefix_names: tuple[int, ...] = ()  # of its beginnings; see `common.spec.prompt_names`


class StateStore(Protocol):
    """Methods are called by the engine thread and do not block; callbacks come from another thread."""

    @property
    def gate(self) -> RestoreGate:
        """Measured speeds of restoring."""

    @property
    def bytes_max(self) -> int:
        """The largest state that is taken; 0: none is."""

    @property
    def hosts(self) -> int:
        """Number of hosts that have connected so far; a new one need not have the states of the one before."""

    @property
    def epoch(self) -> int:
        """Number of the newest order to forget that the engine has obeyed."""

    def holds(self, key: str) -> bool:
        """Return True if a state is known to be stored."""

    def find(self, links: Sequence[bytes]) -> StateOffer | None:
        """Return the saved state with the longest common beginning."""

    def fetch(self, offer: StateOffer, done: Callable[[SavedState | None], None]) -> None:
        """Have a state brought; None: it is gone, damaged or late."""

    def seek(
        self, node_id: str, links: Sequence[bytes], *, held_inputs: int, input_s: float, done: Callable[[], None]
    ) -> None:
        """Let the host bring a state from another node if that is faster than computing; then `find` knows it.

        `held_inputs` of the prompt need not be computed in any case; `input_s`: to compute one, 0 if not measured.
        """

    def settle(self, timeout_s: float) -> None:
        """Wait until everything that was put has arrived. The only method that blocks: the engine stops."""

    def reserve(
        self,
        size_bytes: int,
        done: Callable[[StateBuffer | None], None],
        *,
        pieces: bool = False,
        gives_way: bool = False,
    ) -> None:
        """Have a buffer of this size; None: there is no memory for it.

        `pieces`: only those are written; `gives_way`: as of `run`.
        """

    def run(self, work: Callable[[], None], *, gives_way: bool = False) -> None:
        """Run work on a thread of the store, in the order of the calls; with `gives_way` on one of low priority."""

    def put(self, state: NewState) -> None:
        """Store a state; its buffer belongs to the store from here on."""

    def count(self, event: str) -> None:
        """Count an event of the engine: a state restored, or why not."""

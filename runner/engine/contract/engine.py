"""Contract of every engine with the server, and its reports. No engine is imported here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.clock import NS_PER_S
from common.errors import PunaError, UnsupportedCapability
from common.spec.layout import Layout
from common.spec.speculation import Speculation
from runner.core.layout.memory_report import MemoryUse
from runner.core.sequence.batching import UNKNOWN_COST, CallCost
from runner.core.sequence.decode_windows import LoneStep, StepReads
from runner.core.sequence.endings import Ending
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest
from runner.core.threads.step_times import EngineStep

# Tokens of shorter calls are reported together: each report takes a processor away from the threads that compute.
REPORT_INTERVAL_S = 0.01


class Progressed(NamedTuple):
    """Part of a prompt was evaluated."""

    sequence_id: int
    done_tokens: int
    total_tokens: int
    cached_tokens: int


class Sampled(NamedTuple):
    """A token was chosen. `logits` is a copy of the raw row float32[vocabulary], where log-probabilities are wanted."""

    sequence_id: int
    token_id: int
    logits: NDArray[np.float32] | None
    ending: Ending | None


class Ended(NamedTuple):
    """A sequence ended without a further token."""

    sequence_id: int
    ending: Ending


class Failed(NamedTuple):
    """A sequence cannot go on."""

    sequence_id: int
    error: PunaError


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTimes:
    """Measured by the engine thread for one sequence."""

    queue_ns: int  # arrival to slot
    prompt_ns: int  # first batch to first token
    generate_ns: int  # first token to last, without sampling
    prompt_tokens: int
    cached_tokens: int  # of the prompt
    evaluated_tokens: int  # before the first token; where an answer goes on, what it said so far among them
    slot_id: int


class Paused(NamedTuple):
    """The sequence lost its slot to another one. Whatever of it is next reported came once it had one again."""

    sequence_id: int


class Freed(NamedTuple):
    """The sequence is gone and its slot is free. Reported once for every submitted sequence, after everything else."""

    sequence_id: int
    times: SequenceTimes | None  # None: it never had a slot


Outcome = Progressed | Sampled | Ended | Failed | Paused | Freed


class ParkedPrefix(NamedTuple):
    """A prompt in host RAM, by the sequence that it was evaluated for."""

    sequence_id: int
    restore_s: float  # to copy it back, as measured


@dataclass(slots=True, kw_only=True)
class StepReport:
    """Events since the last report."""

    outcomes: list[Outcome] = field(default_factory=list)
    decode_calls: int = 0
    decode_s: float = 0.0
    gap_s: float = 0.0  # from the results of a call to the next call, while there was something to compute
    batch_sequences: int = 0  # of the last call
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0  # that calls evaluated beside the certain ones
    accepted_tokens: int = 0  # of them that the sampler drew, too
    drafted_by_model: int = 0  # of the drafted ones, those of the draft model
    accepted_by_model: int = 0  # likewise
    drafters_off: int = 0  # switched off for one sequence, because they failed or were slow
    speculation: Speculation | None = None  # as of a sequence that ended
    images_encoded: int = 0
    encode_s: float = 0.0  # in the encoder's thread
    slots_busy: int = 0
    waiting: int = 0
    open_slots: tuple[int, ...] = ()  # that one more request of each band would be given, see `preemption`
    returned: int = 0  # paused sequences that were given a slot again
    paused_s: float = 0.0  # their time without one
    held_inputs: int = 0  # that all slots hold
    lone_steps: list[LoneStep] = field(default_factory=list)  # the calls that show the time of reading
    holders: tuple[int, ...] = ()  # sequences whose prompts slots hold from the beginning on, also ended ones
    parked: tuple[ParkedPrefix, ...] = ()  # likewise, of prompts that were moved to host RAM; the newest first
    cost: CallCost = UNKNOWN_COST  # of a decode call, as measured so far
    has_logits: bool = False
    begun_ns: int = field(default_factory=time.monotonic_ns, compare=False)  # when the report before was made

    def can_wait(self, ahead_s: float, *, interval_s: float) -> bool:
        """Return True if it has tokens alone, none of them a first one, and a call of `ahead_s` ends soon enough."""
        if self.has_logits or len(self.outcomes) > self.generated_tokens:
            return False
        return (time.monotonic_ns() - self.begun_ns) / NS_PER_S + ahead_s < interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """Model that an engine has loaded."""

    layout: Layout  # with every automatic value resolved
    warnings: tuple[str, ...]  # where the engine does not do what the layout asked for
    slot_context_tokens: int
    weights_bytes: int
    memory: MemoryUse | None  # what the engine really holds; None where it cannot tell
    reads: StepReads | None = None  # what a decode step of one token reads; None where it cannot tell
    threads_max: int = 0  # CPU threads that it would use; 0: their number stays, or devices compute everything
    speculation: Speculation | None = None  # None: the engine never evaluates guesses


class LoadProgress(NamedTuple):
    """Progress of a load. Neither figure ever falls."""

    fraction: float  # 0..1; 1 only once everything is there, the context too
    bytes_done: int  # weights in memory
    bytes_total: int


# What is left once all weights are there: the context.
WEIGHTS_FRACTION = 0.99


def weights_progress(fraction: float, bytes_total: int) -> LoadProgress:
    """So much of the weights is in memory, and nothing else."""
    return LoadProgress(min(fraction, WEIGHTS_FRACTION), int(fraction * bytes_total), bytes_total)


class EngineListener(Protocol):
    """Called by the engine on its own thread, in this order: progress, then loaded or failed, then steps."""

    def load_progressed(self, progress: LoadProgress) -> None:
        """From the first call on with all bytes that there will be; the last one says that all are there."""

    def loaded(self, model: LoadedModel) -> None:
        """Handle the end of the load: the engine takes requests now."""

    def load_failed(self, error: PunaError) -> None:
        """Handle a failed load: the engine is finished."""

    def stepped(self, report: StepReport) -> None:
        """Something happened. The report belongs to the listener."""

    def died(self, error: BaseException) -> None:
        """Handle an engine that broke: the process has to end at once."""


class TokenTable(Protocol):
    """Vocabulary data that the text side needs; safe in any thread."""

    size: int
    pieces: Sequence[bytes]
    control: frozenset[int]
    end_tokens: frozenset[int]
    bos: int
    adds_bos: bool

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        """Token ids of UTF-8 text, without begin token."""

    def detokenize(self, ids: list[int]) -> bytes:
        """Return the bytes of tokens, special ones included."""


class Engine(Protocol):
    """One loaded model. Methods may be called from any thread and never block."""

    @property
    def vocabulary(self) -> TokenTable:
        """Only once loaded."""

    @property
    def step(self) -> EngineStep:
        """Current step of the engine thread."""

    def start(self, listener: EngineListener) -> None:
        """Begin to load in a thread of the engine's own."""

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:
        """Run a checked request under an id that was never used before."""

    def read_image(self, data: bytes) -> PreparedImage:
        """Return the inputs that an image file turns into; takes milliseconds, so not on an event loop.

        Raises:
            UnsupportedCapability: the model sees no images.
            InvalidRequest: no image, or none that it can take.
        """

    def cancel(self, sequence_id: int) -> None:
        """Free a sequence's slot before the next decode call. Unknown ids are ignored."""

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """End a sequence and keep only so many of its generated tokens in the cache; for stop strings."""

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Leave a sequence out of the batches while its reader is behind."""

    def use_threads(self, count: int) -> None:
        """Let so many threads compute from the next step on, at most `LoadedModel.threads_max`."""

    def stop(self) -> None:
        """Drop every sequence and end the thread; the vocabulary remains."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; whether it did."""

    def close(self) -> None:
        """Free the model, once its thread has ended and nothing reads its vocabulary. A process that ends need not."""


NO_IMAGES = "this model does not support images"


def refuse_image(_: bytes) -> PreparedImage:
    """`read_image` of models without vision.

    Raises:
        UnsupportedCapability: always.
    """
    raise UnsupportedCapability(NO_IMAGES, param="images")

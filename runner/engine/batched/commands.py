"""Commands of other threads to the engine thread."""

from typing import NamedTuple

from runner.engine.batched.sequence import Sequence
from runner.engine.media.media_encoder import EncodingDone


class Submit(NamedTuple):
    """Run a sequence."""

    sequence: Sequence


class Cancel(NamedTuple):
    """Drop a sequence."""

    sequence_id: int


class Cut(NamedTuple):
    """End a sequence and keep only so many of its generated tokens."""

    sequence_id: int
    generated_tokens: int


class PauseSequence(NamedTuple):
    """Leave a sequence out of the batches, or take it in again."""

    sequence_id: int
    paused: bool


class Encoded(NamedTuple):
    """An image has its rows, or will not get any."""

    done: EncodingDone


class UseThreads(NamedTuple):
    """Let so many threads compute."""

    threads: int


class StopEngine(NamedTuple):
    """Drop everything and return."""


Command = Submit | Cancel | Cut | PauseSequence | Encoded | UseThreads | StopEngine

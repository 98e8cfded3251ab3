"""Choose the tokens of many sequences in one step, on several cores where that is faster.

A choice that llama.cpp makes outside of the interpreter's lock can run beside another; everything else of a step is
Python's and cannot. Measured with two threads on two cores (microseconds for one step; grammars and greedy choices
never leave the engine's thread):

| vocabulary | sequences | filters | one thread | two threads |
|---|---|---|---|---|
| 32,000 | 4, 16 | top_k 40, top_p | 177, 914 | 190, 903 |
| 32,000 | 4, 16 | top_p of everything | 5,014, 21,971 | 3,205, 11,155 |
| 128,256 | 4, 16 | top_k 40, top_p | 667, 3,266 | 463, 2,771 |
| 128,256 | 4 | top_p of everything | 24,939 | 12,726 |

Handing work over costs about 50 microseconds, so that only sequences take part whose choice takes more than twice that.
"""

import queue
import threading
from typing import NamedTuple

from runner.engine.batched.sampler import Sampler
from runner.engine.llama.context import Context

# A choice that takes less is made where it is.
CHOICE_NS_MIN = 120_000
# Less than this in all is not worth a switch of threads.
STEP_NS_MIN = 400_000
THREADS_MAX = 3  # besides the engine's own


class SamplingJob(NamedTuple):
    """A token that is to be chosen: the sequence's sampler, where its logits are, and the position of the token."""

    sampler: Sampler
    place: int
    position: int


class SamplingPool:
    """Threads that choose while the engine thread chooses, too. Only the engine thread may call it."""

    def __init__(self, context: Context, *, threads: int, vocabulary_size: int) -> None:
        """`threads` besides the engine's; none: everything is done in the engine's."""
        self._context = context
        # By what a sampler says that it takes for each token of the vocabulary.
        self.cost_min = CHOICE_NS_MIN / vocabulary_size
        self._total_min = STEP_NS_MIN / vocabulary_size
        self._chosen: dict[int, int | BaseException] = {}
        self._inboxes: list[queue.SimpleQueue[list[SamplingJob] | None]] = []
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        for number in range(min(threads, THREADS_MAX)):
            inbox: queue.SimpleQueue[list[SamplingJob] | None] = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(inbox,), name=f"sampling-{number}", daemon=True)
            self._inboxes.append(inbox)
            self._threads.append(thread)
            thread.start()

    @property
    def threads(self) -> int:
        """Return the number of sampling threads besides the engine's."""
        return len(self._threads)

    def close(self) -> None:
        """End the threads."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._inboxes, self._threads = [], []

    def choose_ahead(self, wanted: list[SamplingJob]) -> None:
        """Choose all of them at once, if that is faster; `sample` gives the results."""
        self._chosen.clear()
        parts = min(len(self._inboxes) + 1, len(wanted))
        if parts < 2 or sum(one.sampler.cost for one in wanted) < self._total_min:
            return
        for one in wanted:
            self._context.logits(one.place)  # the rows are found in one thread, then read in many
        for number, inbox in enumerate(self._inboxes[: parts - 1]):
            inbox.put(wanted[number + 1 :: parts])
        self._choose(wanted[::parts])
        for _ in range(parts - 1):
            self._done.get()

    def sample(self, wanted: SamplingJob) -> int:
        """Return the token, chosen ahead or now.

        Raises:
            PunaError: the sequence cannot go on.
        """
        found = self._chosen.pop(wanted.place, None)
        if found is None:
            return wanted.sampler.sample(self._context, wanted.place, wanted.position)
        if isinstance(found, BaseException):
            raise found
        return found

    def _choose(self, part: list[SamplingJob]) -> None:
        for one in part:
            try:
                found: int | BaseException = one.sampler.sample(
                    self._context, one.place, one.position, gives_lock_away=True
                )
            except BaseException as error:  # noqa: BLE001  # the engine thread raises it
                found = error
            self._chosen[one.place] = found

    def _work(self, inbox: "queue.SimpleQueue[list[SamplingJob] | None]") -> None:
        while (part := inbox.get()) is not None:
            self._choose(part)
            self._done.put(None)

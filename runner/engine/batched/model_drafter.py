"""Drafter that asks a smaller model: reads on what a sequence says, and guesses the likeliest tokens.

What it reads per call of the target is bounded; until it is done with a text, it has no guess. It needs no state of a
sequence that moves, resumes or shifts: it reads what its window takes.
"""

from collections.abc import Sequence as Tokens

from runner.engine.llama.draft_model import DraftModel


class ModelDrafter:
    """Guesses of a draft model for one sequence."""

    __slots__ = ("_model", "_read", "_slot_id", "_start", "said")
    trust = 2

    def __init__(self, said: list[int], model: DraftModel, slot_id: int, *, salt: str | None) -> None:
        """`said` are the tokens of the sequence, which grow. `salt`: see `Lane`."""
        self.said = said
        self._model = model
        self._slot_id = slot_id
        self._start = 0  # in `said`: where the text in the lane begins
        lane = model.lanes[slot_id]
        if lane.salt is None or lane.salt != salt:
            model.keep(slot_id, 0)
        lane.salt = salt
        self._read = 0  # tokens from there on that the lane is known to hold

    @property
    def token_s(self) -> float:
        """Seconds that the guess of one token takes."""
        return self._model.token_s

    def draft(self, limit: int) -> Tokens[int]:
        """Return the likeliest next tokens up to the end of the text; none while it reads a longer text."""
        model, slot_id = self._model, self._slot_id
        unread = self._catch_up(limit)
        if len(unread) > self._model.context.batch_tokens:
            self._evaluate(unread[: self._model.context.batch_tokens])
            return ()
        guesses: list[int] = []
        guess = self._evaluate(unread, guesses=True)
        while guess not in model.end_tokens:
            guesses.append(guess)
            if len(guesses) == limit:
                break
            guess = model.evaluate(slot_id, [guess], guesses=True)
        return guesses

    def _catch_up(self, limit: int) -> list[int]:
        """Erase wrong guesses; return what is to be read, the last token at least."""
        model, said = self._model, self.said
        lane = model.lanes[self._slot_id]
        if len(said) - self._start + limit > model.window_tokens:
            self._start, self._read = len(said) - model.window_tokens // 2, 0
        read = min(self._read, len(lane.held))
        while read < len(lane.held) and self._start + read < len(said) and lane.held[read] == said[self._start + read]:
            read += 1
        read = min(read, len(said) - self._start - 1)
        model.keep(self._slot_id, read)
        self._read = read
        return said[self._start + read :]

    def _evaluate(self, tokens: list[int], *, guesses: bool = False) -> int:
        if not all(0 <= token < self._model.tokens_known for token in tokens):
            raise ValueError("the text holds inputs that the draft model does not know")
        found = self._model.evaluate(self._slot_id, tokens, guesses=guesses)
        self._read += len(tokens)
        return found

"""Guesses of a draft model over a counted one: what it reads, takes back, and keeps of whom."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.speculation.control import Offer, choose_drafts, choose_length
from runner.engine.batched.drafts import STALL_S_MIN, Drafts
from runner.engine.batched.model_drafter import ModelDrafter
from runner.engine.llama.draft_model import DraftModel, Lane

KNOWN, END = 1000, 999


class Counting:
    """Guesses the next number. Counts what it reads."""

    end_tokens = frozenset({END})
    tokens_known = KNOWN
    token_s = 0.001

    def __init__(self, *, batch: int = 8, window: int = 64) -> None:
        self.context = SimpleNamespace(batch_tokens=batch)
        self.window_tokens = window
        self.lanes = [Lane()]
        self.read: list[list[int]] = []

    def evaluate(self, slot_id: int, tokens: list[int], *, guesses: bool) -> int:
        assert len(tokens) <= self.context.batch_tokens
        self.lanes[slot_id].held += tokens
        assert len(self.lanes[slot_id].held) <= self.window_tokens
        self.read.append(tokens)
        return tokens[-1] + 1 if guesses else -1

    def keep(self, slot_id: int, tokens: int) -> None:
        del self.lanes[slot_id].held[tokens:]


def drafter(said: list[int], model: Counting, *, salt: str | None = "a") -> ModelDrafter:
    return ModelDrafter(said, cast("DraftModel", model), 0, salt=salt)


def test_a_text_is_read_in_calls_of_bounded_size_before_anything_is_guessed() -> None:
    model = Counting()
    said = list(range(20))
    guesser = drafter(said, model)
    assert [guesser.draft(3) for _ in range(3)] == [(), (), [20, 21, 22]]
    assert [len(tokens) for tokens in model.read] == [8, 8, 4, 1, 1]


def test_wrong_guesses_are_erased_and_right_ones_not_read_again() -> None:
    model = Counting()
    said = [1, 2]
    guesser = drafter(said, model)
    assert guesser.draft(4) == [3, 4, 5, 6]
    said += [3, 4, 50]  # two were right
    model.read.clear()
    assert guesser.draft(2) == [51, 52]
    assert model.read == [[50], [51]]
    assert model.lanes[0].held == [1, 2, 3, 4, 50, 51]


def test_a_guess_ends_before_the_end_of_the_text() -> None:
    assert drafter([END - 3], Counting()).draft(7) == [END - 2, END - 1]


def test_a_text_beyond_the_window_is_followed_by_its_newest_half() -> None:
    model = Counting(window=16)
    said = [7] * 12
    guesser = drafter(said, model)
    while not (guess := guesser.draft(3)):
        pass
    for _ in range(40):
        said.append(5)
        while not (guess := guesser.draft(3)):
            pass
        assert guess == [6, 7, 8]


@pytest.mark.parametrize(
    ("first", "second", "reads"),
    [("a", "a", [[4]]), ("a", "b", [[1, 2, 3, 4]]), (None, None, [[1, 2, 3, 4]]), ("a", None, [[1, 2, 3, 4]])],
)
def test_a_lane_is_reused_for_the_same_tenant_alone(first: str | None, second: str | None, reads: Any) -> None:
    model = Counting()
    assert drafter([1, 2, 3], model, salt=first).draft(1) == [4]
    model.read.clear()
    assert drafter([1, 2, 3, 4], model, salt=second).draft(1) == [5]
    assert model.read == reads


def test_inputs_that_the_draft_model_does_not_know_switch_it_off() -> None:
    for unknown in (-1, KNOWN):
        said = [1, unknown]
        drafts = Drafts(said, [], model=drafter(said, Counting()))
        assert not drafts.offer(3, lambda *_: 3).tokens
        assert (drafts.model, drafts.off) == (None, 1)


def test_a_draft_model_that_stalls_is_switched_off_and_its_guess_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    said, now_ns = [1, 2], [0]
    monkeypatch.setattr("runner.engine.batched.drafts.time.monotonic_ns", lambda: now_ns[0])
    model = Counting()
    guess, evaluate = drafter(said, model), model.evaluate

    def late(slot_id: int, tokens: list[int], *, guesses: bool) -> int:
        now_ns[0] += round(STALL_S_MIN * 1e9) + 1
        return evaluate(slot_id, tokens, guesses=guesses)

    monkeypatch.setattr(model, "evaluate", late)
    drafts = Drafts(said, [], model=guess)
    assert drafts.offer(1, lambda *_: 1).tokens == [3]
    assert (drafts.model, drafts.off) == (None, 1)


def test_the_model_is_asked_for_as_many_as_pay_unless_another_guess_is_likelier_to_be_right() -> None:
    class Text:
        trust = 0

        def draft(self, limit: int) -> list[int]:
            return [70, 71]

    said, model = [1, 2], Counting()
    drafts = Drafts(said, [Text()], model=drafter(said, model))
    assert drafts.offer(15, lambda *_: 0).tokens == [70, 71]  # it would not pay
    assert not model.read
    assert drafts.offer(15, lambda *_: 2).tokens == [3, 4]
    assert drafts.by_model
    for _ in range(8):  # the text's guesses are counted, too, and are right
        drafts.learn([70, 71])
        found = drafts.offer(15, lambda *_: 2)
    assert found.tokens == [70, 71]
    assert not drafts.by_model


@pytest.mark.parametrize("is_right", [True, False])
def test_the_model_is_asked_while_it_may_pay_so_that_its_share_becomes_known(is_right: bool) -> None:
    def length(share: float, token_s: float) -> int:
        return choose_length(
            share, sequences=1, token_s=token_s, seconds=lambda inputs: 50 + 13 * inputs, inputs_max=64
        )

    said, asked, offer = [1, 2], 0, Offer((), 0.0)
    drafts = Drafts(said, [], model=drafter(said, Counting()))
    for _ in range(40):
        offer = drafts.offer(15, length)
        asked += bool(offer.tokens)
        drafts.learn([said[-1] + 1 if is_right else 60])
    if is_right:
        assert asked == 40
        assert choose_drafts([offer], seconds=lambda inputs: 50 + 13 * inputs, inputs_max=64) != (0,)
    else:
        assert 0 < asked < 4

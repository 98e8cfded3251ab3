"""The fake engine's model and its options."""

import subprocess
import sys

import numpy as np
import pytest

from common.errors import InvalidRequest
from common.spec.sampling import Sampling
from tests.engines.fake_model import BEGIN, END, FakeVocabulary, fake_choice, fake_logits, prompt_key
from tests.engines.fake_options import FakeOptions, parse_fake_options
from tests.engines.formulas import log_softmax

GREEDY = Sampling(temperature=0.0)


def test_a_row_follows_from_key_and_position_alone() -> None:
    key = prompt_key(1, (5, 6))
    assert np.array_equal(fake_logits(key, 3, answer_tokens=0), fake_logits(key, 3, answer_tokens=0))
    assert not np.array_equal(fake_logits(key, 3, answer_tokens=0), fake_logits(key, 4, answer_tokens=0))


def test_keys_differ_by_seed_and_by_prompt() -> None:
    keys = {prompt_key(seed, prompt) for seed in (-1, 0, 1) for prompt in ((1,), (2,), (1, 2))}
    assert len(keys) == 9


def test_an_answer_is_made_of_letters_and_ends_when_it_is_over() -> None:
    key = prompt_key(0, (1, 2, 3))
    said = [fake_choice(fake_logits(key, position, answer_tokens=40), GREEDY, position) for position in range(41)]
    assert said[40] == END
    assert bytes(said[:40]).decode().replace(" ", "").isalpha()
    assert len(set(said)) > 10


def test_draws_follow_the_distribution() -> None:
    row = fake_logits(7, 0, answer_tokens=0)
    hot = Sampling(temperature=2.0, seed=11)
    drawn = np.bincount([fake_choice(row, hot, position) for position in range(20_000)], minlength=row.size)
    expected = np.exp(log_softmax(row / np.float32(2.0)))
    # Three standard deviations of the commonest of 27 tokens are less than this.
    assert np.abs(drawn / 20_000 - expected).max() < 0.01


def test_control_tokens_are_read_only_where_they_may_be() -> None:
    vocabulary = FakeVocabulary()
    text = "<begin>é<end>".encode()
    assert vocabulary.tokenize(text, parse_special=True) == [BEGIN, 0xC3, 0xA9, END]
    assert vocabulary.tokenize(text, parse_special=False) == list(text)
    assert vocabulary.detokenize([BEGIN, 0xC3, 0xA9, END]) == text


def test_options_come_from_json() -> None:
    assert parse_fake_options("") == FakeOptions()
    assert parse_fake_options('{"seed": 3, "exit_status": 70}') == FakeOptions(seed=3, exit_status=70)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"sed": 3}', '{"seed": "x"}', '{"load_error": "boredom"}', '{"step_s": NaN}']
)
def test_options_that_nobody_knows_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="engine options: "):
        parse_fake_options(text)


def test_a_fake_can_be_used_where_there_is_no_llama_cpp() -> None:
    program = "import sys; sys.modules['llama_cpp'] = None; import tests.engines.fake"
    subprocess.run([sys.executable, "-c", program], check=True)

"""The fake engine beyond the contract: answers, times and failures that are set."""

import json
from pathlib import Path

import pytest

from common.errors import PunaError
from common.spec.sampling import Sampling
from runner.core.sequence.endings import END_TOKEN
from tests.engines.fake import FakeEngine
from tests.engines.fake_options import FakeOptions, parse_fake_options
from tests.integration.runner.contract import driven
from tests.integration.runner.engine_kinds import PROMPT, layout, no_file
from tests.waiting import Stopwatch

pytestmark = pytest.mark.behaviour("B-150", "B-151")


def test_a_fake_answer_follows_from_seed_prompt_and_position_alone(tmp_path: Path) -> None:
    def answer(seed: int, prompt: str, sampling: Sampling) -> list[int]:
        with driven(FakeEngine(no_file(tmp_path), layout(), FakeOptions(seed=seed))) as driver:
            return driver.ask(prompt, max_tokens=20, sampling=sampling).ids

    greedy = Sampling(temperature=0.0)
    assert answer(1, PROMPT, greedy) == answer(1, PROMPT, greedy)
    assert len({tuple(answer(seed, PROMPT, greedy)) for seed in range(4)}) == 4
    assert answer(1, PROMPT, greedy) != answer(1, PROMPT + "!", greedy)
    hot = [answer(1, PROMPT, Sampling(temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    assert hot[0] == hot[1] != hot[2]


def test_a_fake_answer_ends_where_it_was_told_to(tmp_path: Path) -> None:
    with driven(FakeEngine(no_file(tmp_path), layout(), FakeOptions(answer_tokens=5))) as driver:
        answer = driver.ask(PROMPT, ignore_eos=False)
    assert (len(answer.ids), answer.endings) == (6, [END_TOKEN])


def test_a_fake_takes_the_time_that_it_was_given(tmp_path: Path) -> None:
    options = FakeOptions(prompt_tokens_per_s=700.0, tokens_per_s=200.0)
    with driven(FakeEngine(no_file(tmp_path), layout(), options)) as driver:
        watch = Stopwatch()
        started = [driver.submit(PROMPT, max_tokens=11) for _ in range(2)]
        for one in started:
            driver.read(one)
        driver.idle()
        took_s = sum(report.decode_s for report in driver.listener.reports)
    # The slots share both speeds, and the last token of each sequence is never evaluated.
    expected_s = 2 * len(PROMPT) / 700 + 2 * 10 / 200
    assert expected_s <= took_s
    watch.assert_within(5 * expected_s, "the steps", took_s=took_s)


@pytest.mark.parametrize("reason", ["bad_model_file", "insufficient_memory"])
def test_a_fake_fails_to_load_when_told_to(reason: str, tmp_path: Path) -> None:
    options = parse_fake_options(json.dumps({"load_error": reason}))
    with pytest.raises(PunaError) as refused, driven(FakeEngine(no_file(tmp_path), layout(), options)):
        pass
    assert refused.value.reason == reason

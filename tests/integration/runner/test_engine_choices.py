"""Choices of every engine: seeds, biases, grammars, samplers, rows of logits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from common.errors import InvalidRequest
from common.spec.sampling import Sampling
from runner.core.sequence.endings import END_TOKEN, LENGTH
from runner.core.sequence.logprobs import token_logprobs
from tests.engines.formulas import log_softmax
from tests.integration.runner import constraints
from tests.integration.runner.contract import Driver
from tests.integration.runner.engine_kinds import PROMPT, Kind
from tests.unit.runner.grammar_walks import grammar_of, matches

pytestmark = pytest.mark.behaviour("B-150", "B-151")


def test_the_same_request_gives_the_same_tokens(driver: Driver) -> None:
    hot = Sampling(temperature=1.0, seed=7)
    first, again = (driver.ask(PROMPT, max_tokens=12, sampling=hot, cache_prompt=False) for _ in range(2))
    assert first.ids == again.ids


def test_a_banned_token_never_comes(driver: Driver) -> None:
    free = driver.ask(PROMPT, max_tokens=1)
    banned = Sampling(temperature=0.0, logit_bias={free.ids[0]: -100.0})
    assert free.ids[0] not in driver.ask(PROMPT, max_tokens=12, sampling=banned).ids


ANSWER = 'root ::= ("yes" | "no" | "perhaps") (", " [a-z]{1,4}){3,5} "."'


def test_an_answer_under_a_grammar_matches_it_and_ends_with_it(driver: Driver) -> None:
    vocabulary = driver.engine.vocabulary
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=1.0, seed=4)):
        answer = driver.ask(
            PROMPT, max_tokens=90, sampling=sampling, ignore_eos=False, grammar=constraints.grammar(ANSWER, vocabulary)
        )
        assert answer.endings == [END_TOKEN]
        assert answer.ids[-1] in vocabulary.end_tokens
        assert matches(grammar_of(ANSWER), vocabulary.detokenize(answer.ids[:-1]))


def test_an_answer_under_a_schema_is_cut_by_its_limit_alone(driver: Driver) -> None:
    vocabulary = driver.engine.vocabulary
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22]}},
        "required": ["ok", "n"],
    }
    grammar = constraints.schema(schema, vocabulary)
    whole = driver.ask(PROMPT, max_tokens=60, ignore_eos=False, grammar=grammar)
    assert set(json.loads(vocabulary.detokenize(whole.ids[:-1]))) == {"ok", "n"}
    cut = driver.ask(PROMPT, max_tokens=3, ignore_eos=False, grammar=grammar)
    assert (cut.ids, cut.endings) == (whole.ids[:3], [LENGTH])


def test_a_grammar_that_nothing_can_go_on_with_fails_its_own_request_only(driver: Driver) -> None:
    vocabulary = driver.engine.vocabulary
    bias = {token_id: -100.0 for token_id, piece in enumerate(vocabulary.pieces) if b"y" in piece}
    sampling = Sampling(temperature=0.0, logit_bias=bias)
    grammar = constraints.grammar('root ::= "yes"', vocabulary)
    failed = driver.ask(PROMPT, max_tokens=9, sampling=sampling, grammar=grammar)
    assert [type(error) for error in failed.errors] == [InvalidRequest]
    assert failed.freed == 1
    assert len(driver.ask(PROMPT, max_tokens=9).ids) == 9


SAMPLINGS = (
    Sampling(temperature=0.0, dry_multiplier=3.0, dry_allowed_length=1),
    # Few candidates, far apart: a resumed prompt is computed in other batches, and rounding may turn a close draw.
    Sampling(temperature=0.3, seed=3, top_k=4, xtc_probability=0.5, xtc_threshold=0.05),
    Sampling(temperature=2.0, seed=3, top_n_sigma=0.1),
)


@pytest.mark.parametrize("index", range(len(SAMPLINGS)))
def test_dry_xtc_and_the_sigma_filter_act_and_go_on_after_a_cut(index: int, driver: Driver) -> None:
    prompt = driver.tokens(PROMPT)
    sampling = SAMPLINGS[index]
    if sampling.avoids_repeats:  # something to do: without it the model says one word for ever
        sampling = replace(sampling, logit_bias={prompt[0]: 30.0})
    plain = replace(sampling, dry_multiplier=0.0, xtc_probability=0.0, top_n_sigma=0.0)
    breakers = constraints.breakers(driver.engine.vocabulary)
    asked = {"breakers": breakers, "max_tokens": 20, "cache_prompt": False}
    acted = driver.ask(prompt, sampling=sampling, **asked)
    assert acted.ids != driver.ask(prompt, sampling=plain, **asked).ids
    for cut in (1, 7):
        rest = driver.ask(prompt, sampling=sampling, resumed=tuple(acted.ids[:cut]), **asked)
        assert rest.ids == acted.ids[cut:]


def test_a_dynamic_temperature_acts_and_goes_on_after_a_cut(kind: Kind, driver: Driver) -> None:
    if not kind.reads_files:
        pytest.skip("of the filters, the fake plays XTC alone")
    sampling = Sampling(temperature=1.0, seed=3, top_k=4, dynatemp_range=1.0, dynatemp_exponent=0.5)
    asked = {"max_tokens": 20, "cache_prompt": False}
    acted = driver.ask(PROMPT, sampling=sampling, **asked)
    assert acted.ids != driver.ask(PROMPT, sampling=replace(sampling, dynatemp_range=0.0), **asked).ids
    rest = driver.ask(PROMPT, sampling=sampling, resumed=tuple(acted.ids[:7]), **asked)
    assert rest.ids == acted.ids[7:]
    greedy = replace(sampling, temperature=0.0)
    assert driver.ask(PROMPT, sampling=greedy, **asked).ids == driver.ask(PROMPT, **asked).ids


@pytest.mark.behaviour("B-110")
def test_the_row_of_a_token_is_a_distribution_in_which_it_is_the_likeliest(driver: Driver) -> None:
    answer = driver.ask(PROMPT, max_tokens=12, top_logprobs=5)
    assert len(answer.rows) == len(answer.ids) == 12
    for token_id, row in zip(answer.ids, answer.rows, strict=True):
        assert row.dtype == np.float32
        assert row.shape == (driver.engine.vocabulary.size,)
        shares = np.exp(log_softmax(row))
        assert shares.sum() == pytest.approx(1.0, abs=1e-5)
        logprobs = token_logprobs(row, token_id, 5)
        assert logprobs.top[0] == (token_id, logprobs.chosen)
        assert logprobs.chosen == pytest.approx(float(np.log(shares[token_id])), abs=1e-5)


def test_rows_are_raw_whatever_bias_and_penalties_do(driver: Driver) -> None:
    plain = driver.ask(PROMPT, max_tokens=1, top_logprobs=0, cache_prompt=False)
    bent = Sampling(temperature=0.0, repeat_penalty=1.5, logit_bias={plain.ids[0]: -100.0})
    other = driver.ask(PROMPT, max_tokens=1, top_logprobs=0, cache_prompt=False, sampling=bent)
    assert other.ids != plain.ids
    np.testing.assert_array_equal(other.rows[0], plain.rows[0])


def test_no_rows_come_unasked(driver: Driver) -> None:
    assert driver.ask(PROMPT, max_tokens=3).rows == []

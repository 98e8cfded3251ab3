"""The table of options: types, ranges, texts, order of merging."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.options import NATIVE_DEFAULTS, OPENAI_DEFAULTS, plan_answer
from gateway.core.request.option_table import check_options

DRAWN = 5
MODEL = ModelInfo(name="demo:latest", digest="d", context_tokens=2048, vocabulary_size=1000)


@pytest.mark.behaviour("B-119")
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("num_ctx", "5", "integer"),
        ("num_ctx", True, "integer"),
        ("num_ctx", 5.5, "integer"),
        ("temperature", "hot", "float32"),
        ("temperature", False, "float32"),
        ("cache_prompt", 1, "boolean"),
        ("use_mmap", "yes", "boolean"),
        ("stop", "text", "array"),
        ("num_gpu", [], "integer"),
    ],
)
def test_a_wrong_type_names_option_and_type(name: str, value: object, kind: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_options({name: value})
    assert caught.value.message == f'option "{name}" must be of type {kind}'


def test_a_stop_that_is_not_all_strings_has_its_own_text() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_options({"stop": ["a", 1]})
    assert caught.value.message == 'option "stop" must be of an array of strings'


RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("temperature", [0, 10], [-0.1, 10.1, 1e30]),
    ("top_k", [-1, 0, 1000], [-2, 1e10]),
    ("top_p", [0, 1], [-0.01, 1.01]),
    ("min_p", [0, 1], [-0.01, 1.01]),
    ("typical_p", [0, 1], [-0.01, 1.01]),
    ("repeat_last_n", [-1, 64], [-2]),
    ("repeat_penalty", [0.1, 10], [0, -1, 10.1]),
    ("presence_penalty", [-2, 2], [-2.1, 2.1]),
    ("frequency_penalty", [-2, 2], [-2.1, 2.1]),
    ("seed", [-(2**63), 2**63 - 1], [2**63, 2**64]),
    ("num_predict", [-2, -1, 0, 1, 2**31 - 1], [-3, 2**63]),
    ("num_keep", [-1, 0, 4], [-2]),
    ("num_ctx", [4, 2**31], [3, 0, -1]),
    ("num_batch", [1], [0]),
    ("num_gpu", [-1, 999], [-2]),
    ("num_thread", [0], [-1]),
    ("stop", [[], ["x" * 256], ["a"] * 16], [["x" * 257], ["a"] * 17, [""]]),
    ("dry_multiplier", [0, 0.8, 100], [-0.1, 101]),
    ("dry_base", [1, 1.75], [0.99, 11]),
    ("dry_allowed_length", [0, 2], [-1]),
    ("dry_penalty_last_n", [-1, 0, 4096], [-2]),
    ("dry_sequence_breakers", [[], ["\n", "*"]], [[""], "\n"]),
    ("xtc_probability", [0, 1], [-0.1, 1.1]),
    ("xtc_threshold", [0, 1], [-0.1, 1.1]),
    ("top_n_sigma", [-1, 0, 1.5], [-2, 101]),
    ("dynatemp_range", [0, 0.5, 10], [-0.1, 10.1]),
    ("dynatemp_exponent", [0, 1, 10], [-0.1, 10.1]),
    ("speculative", ["auto", "on", "off"], ["always", "", True, 1]),
    ("speculative_tokens", [0, 15], [-1, 16]),
    ("logit_bias", [{}, {"5": -100, "6": 100}], [{"5": 101}, {"x": 1}, {"5": True}, {str(2**32): 1}]),
]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, good, _ in RANGES for value in good])
def test_values_at_the_limits_pass(name: str, value: object) -> None:
    checked = check_options({name: value})
    assert name in checked.values or name in checked.ignored


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, _, bad in RANGES for value in bad])
def test_values_beyond_the_limits_are_refused_with_the_range(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f'option "{name}" must ') as caught:
        check_options({name: value})
    assert caught.value.param == name


def test_a_whole_float_is_an_integer_and_null_is_absent() -> None:
    assert check_options({"num_ctx": 512.0, "top_k": None}).values == {"num_ctx": 512}


@pytest.mark.behaviour("B-119")
def test_retired_and_unknown_options_are_named_and_without_effect() -> None:
    retired = ("mirostat", "tfs_z", "numa", "low_vram", "f16_kv", "logits_all", "penalize_newline", "n_discard")
    checked = check_options(dict.fromkeys(retired, 1))
    assert (checked.values, set(checked.unknown)) == ({}, set(retired))


def test_options_of_placement_are_named_as_ignored() -> None:
    asked = {"num_gpu": 1, "num_thread": 2}
    assert check_options(asked, may_set_load=False).ignored == ("num_gpu", "num_thread")
    assert check_options(asked).values == asked


def test_a_budget_of_reasoning_is_a_number_of_tokens() -> None:
    assert check_options({"think_budget": 0}).values == {"think_budget": 0}
    with pytest.raises(InvalidRequest, match='option "think_budget" must be at least 0'):
        check_options({"think_budget": -1})


def test_later_layers_win() -> None:
    model = ModelInfo(name="m:latest", digest="d", sampling_defaults={"temperature": 0.3, "top_k": 7})
    plan = plan_answer(drawn_seed=DRAWN, dialect=OPENAI_DEFAULTS, model=model, requested={"top_k": 9})
    # request 9 over model 7; model 0.3 over the dialect's 1.0; the dialect's top_p 1 over the engine's 0.9
    chosen = plan.sampling
    assert (chosen.top_k, chosen.temperature, chosen.top_p, chosen.min_p) == (9, 0.3, 1.0, 0.0)


def test_native_defaults_are_those_of_the_table() -> None:
    plan = plan_answer(drawn_seed=DRAWN, dialect=NATIVE_DEFAULTS, model=MODEL, requested={})
    chosen = plan.sampling
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.repeat_last_n) == (0.8, 40, 0.9, 64)
    assert (chosen.repeat_penalty, chosen.seed, plan.max_tokens, plan.keep_tokens) == (1.0, DRAWN, None, 4)
    assert (plan.stop, plan.context_tokens, plan.cache_prompt) == ((), None, True)


@pytest.mark.parametrize(("seed", "used"), [(-1, DRAWN), (0, 0), (7, 7), (-2, 2**64 - 2)])
def test_a_seed_is_used_as_64_bits_and_minus_one_draws_one(seed: int, used: int) -> None:
    plan = plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested={"seed": seed})
    assert plan.sampling.seed == used


def test_num_ctx_beyond_the_trained_length_is_clamped() -> None:
    plan = plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested={"num_ctx": 2**31})
    assert plan.context_tokens == 2048


@pytest.mark.parametrize(
    "requested",
    [{"top_k": 1001}, {"repeat_last_n": 2049}, {"num_keep": 513, "num_ctx": 512}, {"logit_bias": {1000: 1.0}}],
)
def test_ranges_that_depend_on_the_model_are_checked_against_it(requested: Any) -> None:
    with pytest.raises(InvalidRequest):
        plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested=requested)


@pytest.mark.parametrize(
    "requested",
    [{"top_k": 1000}, {"repeat_last_n": 2048}, {"num_keep": 512, "num_ctx": 512}, {"logit_bias": {999: 1.0}}],
)
def test_the_last_value_of_a_range_that_depends_on_the_model_passes(requested: Any) -> None:
    plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested=requested)


def test_a_shorter_context_of_the_request_shortens_what_penalties_may_look_back_to() -> None:
    with pytest.raises(InvalidRequest):
        plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested={"num_ctx": 512, "repeat_last_n": 513})


@pytest.mark.parametrize(("num_predict", "max_tokens"), [(-2, None), (-1, None), (0, None), (1, 1)])
def test_lengths_below_one_mean_as_long_as_it_takes(num_predict: int, max_tokens: int | None) -> None:
    assert (
        plan_answer(drawn_seed=DRAWN, dialect={}, model=MODEL, requested={"num_predict": num_predict}).max_tokens
        == max_tokens
    )


def test_what_a_modelfile_says_wins_over_the_dialect_and_the_file_and_not_over_the_request() -> None:
    model = ModelInfo(
        name="m:latest",
        digest="d",
        sampling_defaults={"temperature": 0.3, "top_p": 0.4},
        parameters={"temperature": 0.5, "top_k": 5},
    )
    plan = plan_answer(drawn_seed=DRAWN, dialect=OPENAI_DEFAULTS, model=model, requested={"top_k": 9})
    assert (plan.sampling.temperature, plan.sampling.top_p, plan.sampling.top_k) == (0.5, 0.4, 9)


def test_where_the_model_tells_no_sizes_the_runner_judges() -> None:
    model = ModelInfo(name="m:latest", digest="d")
    plan = plan_answer(
        drawn_seed=DRAWN, dialect={}, model=model, requested={"num_ctx": 10**6, "top_k": 10**6, "num_keep": 10**5}
    )
    assert plan.context_tokens == 10**6

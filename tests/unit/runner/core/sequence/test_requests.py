"""Inputs of a slot from a request."""

from typing import Any

import pytest

from common.errors import InvalidRequest, PromptTooLong
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt, check_request, prepare_prompt


def request(prompt: int = 10, *, boundaries: tuple[int, ...] = (), **fields: Any) -> GenerationRequest:
    return GenerationRequest(prompt=TokenizedPrompt(tuple(range(prompt)), boundaries), **fields)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": 0}, "prompt"),
        ({"prompt": 101}, "prompt"),
        ({"resumed": (100,)}, "resume_token_ids"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"speculative_tokens": 16}, "speculative_tokens"),
    ],
)
def test_what_can_never_succeed_is_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_request(request(**wrong), vocabulary_size=100)
    assert refused.value.param == param


@pytest.mark.behaviour("B-111")
def test_twenty_alternatives_are_allowed() -> None:
    check_request(request(top_logprobs=20), vocabulary_size=100)


@pytest.mark.behaviour("B-121")
def test_the_request_s_own_context_limits_its_sequence() -> None:
    prepared = prepare_prompt(request(100, context_tokens=50, keep_tokens=4), slot_context_tokens=4096, adds_bos=False)
    assert prepared.context_tokens == 50
    assert prepared.inputs == [0, 1, 2, 3, *range(54, 100)]


@pytest.mark.behaviour("B-121")
def test_the_slot_s_context_limits_the_request_s() -> None:
    assert prepare_prompt(request(context_tokens=9999), slot_context_tokens=512, adds_bos=False).context_tokens == 512


@pytest.mark.behaviour("B-56")
def test_the_prompt_count_is_that_after_the_cut() -> None:
    assert prepare_prompt(request(100), slot_context_tokens=64, adds_bos=False).prompt_tokens == 64
    with pytest.raises(PromptTooLong):
        prepare_prompt(request(100, truncate=False), slot_context_tokens=64, adds_bos=False)


def test_resumed_ids_follow_the_prompt_and_are_not_part_of_it() -> None:
    prepared = prepare_prompt(request(10, resumed=(90, 91)), slot_context_tokens=64, adds_bos=False)
    assert prepared.inputs == [*range(10), 90, 91]
    assert prepared.prompt_tokens == 10


def test_where_texts_begin_is_known_only_of_a_prompt_that_was_not_cut() -> None:
    whole = prepare_prompt(request(64, boundaries=(5, 20)), slot_context_tokens=64, adds_bos=False)
    cut = prepare_prompt(request(65, boundaries=(5, 20)), slot_context_tokens=64, adds_bos=False)
    assert (whole.boundaries, cut.boundaries) == ((5, 20), ())

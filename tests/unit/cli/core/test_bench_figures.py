import pytest

from cli.core.bench_figures import (
    Answered,
    bench_prompt,
    concurrency_list,
    level_of,
    level_row,
    percentile,
    prompt_words,
)


def answered(*, ttft_s: float = 0.1, ended_s: float = 1.1, tokens: int = 11, cached: int = 0) -> Answered:
    return Answered(
        started_s=0.0, first_token_s=ttft_s, ended_s=ended_s, tokens=tokens, prompt_tokens=100, cached_tokens=cached
    )


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]

    assert percentile(values, 50) == 3.0
    assert percentile(values, 95) == 5.0
    assert percentile([7.0], 50) == percentile([7.0], 95) == 7.0


def test_the_first_token_does_not_count_for_the_speed_of_a_stream() -> None:
    assert answered().tokens_per_s == pytest.approx(10.0)
    assert answered(tokens=1).tokens_per_s is None


def test_a_level_sums_up_its_requests() -> None:
    level = level_of(2, [answered(cached=50), answered(ttft_s=0.3, ended_s=1.3)], failed=1, wall_s=2.0)

    assert (level.concurrency, level.requests, level.failed) == (2, 2, 1)
    assert (level.ttft_ms_p50, level.ttft_ms_p95) == (100.0, 300.0)
    assert level.tokens_per_s == 11.0
    assert level.stream_tokens_per_s == 10.0
    assert level.cached_share == 0.25
    assert level_row(level) == ("2", "2", "1", "100", "25%", "11", "100 ms", "300 ms", "10.0", "11.0")


def test_a_level_without_answers_has_no_figures() -> None:
    level = level_of(4, [], failed=3, wall_s=1.0)

    assert (level.requests, level.failed, level.tokens_per_s, level.ttft_ms_p50) == (0, 3, None, None)
    assert level_row(level)[3:] == ("",) * 7


def test_levels_are_a_list_of_numbers() -> None:
    assert concurrency_list("1,2, 4") == (1, 2, 4)
    for text in ("", "1,", "a", "0", "-1", "1025"):
        with pytest.raises(ValueError, match=r"numbers|at once"):
            concurrency_list(text)


def test_the_length_of_a_prompt_follows_from_a_sample() -> None:
    assert prompt_words(wanted_tokens=300, sample={"prompt_eval_count": 192}, sample_words=64) == 100
    assert prompt_words(wanted_tokens=1, sample={}, sample_words=64) == 64


def test_prompts_differ_from_their_first_own_word_and_repeat() -> None:
    one, other = bench_prompt(words=20, shared_words=5, number=1), bench_prompt(words=20, shared_words=5, number=2)

    assert one == bench_prompt(words=20, shared_words=5, number=1)
    assert len(one.split()) == 20
    assert one.split()[:5] == other.split()[:5]
    assert one.split()[5] != other.split()[5]

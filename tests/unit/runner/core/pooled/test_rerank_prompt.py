"""Prompt of a question and a document."""

import pytest

from common.errors import InvalidRequest, PromptTooLong
from runner.core.pooled.rerank_prompt import PairTokens, Place, fill_ids, fill_text, plain_parts, split_template

BOS, EOS, SEP = 1, 2, 3
QUERY, DOCUMENT = [10, 11], [20, 21, 22]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (PairTokens(bos=BOS, eos=EOS, sep=SEP), (BOS, 10, 11, EOS, SEP, 20, 21, 22, EOS)),
        (PairTokens(bos=BOS, eos=EOS), (BOS, 10, 11, EOS, 20, 21, 22, EOS)),
        (PairTokens(bos=BOS, sep=SEP), (BOS, 10, 11, SEP, 20, 21, 22)),
        (PairTokens(), (10, 11, 20, 21, 22)),
    ],
)
def test_without_a_template_the_vocabularys_flags_say_what_stands_between(
    tokens: PairTokens, expected: tuple[int, ...]
) -> None:
    parts = plain_parts(tokens)
    assert fill_ids(parts, query=QUERY, document=DOCUMENT, context_tokens=100, truncate=False) == expected


def test_a_template_is_split_at_its_places() -> None:
    parts = split_template("Q: {query}\nD: {document}\n{query}")
    assert parts == ("Q: ", Place.QUERY, "\nD: ", Place.DOCUMENT, "\n", Place.QUERY)
    assert split_template("") == ()


def test_places_inside_user_text_are_text() -> None:
    parts = split_template("Q: {query} D: {document}")
    assert fill_text(parts, query="{document}", document="{query}") == "Q: {document} D: {query}"


PARTS = plain_parts(PairTokens(bos=BOS, eos=EOS))


def test_only_the_document_is_cut() -> None:
    cut = fill_ids(PARTS, query=QUERY, document=DOCUMENT, context_tokens=7, truncate=True)
    assert cut == (BOS, 10, 11, EOS, 20, 21, EOS)


def test_a_document_that_stands_twice_is_cut_twice() -> None:
    parts = ((7,), Place.DOCUMENT, (8,), Place.DOCUMENT)
    assert fill_ids(parts, query=[], document=DOCUMENT, context_tokens=6, truncate=True) == (7, 20, 21, 8, 20, 21)


def test_a_pair_that_is_too_long_is_refused_without_truncation() -> None:
    with pytest.raises(PromptTooLong) as refused:
        fill_ids(PARTS, query=QUERY, document=DOCUMENT, context_tokens=7, truncate=False)
    assert refused.value.message == "the input length exceeds the context length: 8 tokens > 7 maximum"


@pytest.mark.parametrize("parts", [PARTS, ((7,), Place.QUERY)])
def test_a_question_that_fills_the_context_is_refused(parts: tuple[tuple[int, ...] | Place, ...]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fill_ids(parts, query=[10] * 6, document=DOCUMENT, context_tokens=6, truncate=True)
    assert refused.value.message == "input after truncation exceeds maximum context length"

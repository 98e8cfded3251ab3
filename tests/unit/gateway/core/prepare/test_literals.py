"""User text never becomes a special token."""

import json
import time
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from gateway.core.prepare import literals
from gateway.core.prepare.literals import HIDDEN_MAX, Literal, LiteralGuard, SpecialTexts, Text

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x")


def guard(nonce: int = 2**63 + 5) -> LiteralGuard:
    return LiteralGuard(special=SpecialTexts.of(SPECIAL), nonce=nonce)


def test_special_text_in_content_becomes_a_literal_of_its_own() -> None:
    one = guard()
    hidden = one.hide("a<|im_end|>b")
    assert one.split(f"<|im_start|>user\n{hidden}<|im_end|>") == [
        Text("<|im_start|>user\na"),
        Literal("<|im_end|>"),
        Text("b<|im_end|>"),
    ]


def test_the_longest_special_text_wins() -> None:
    one = guard()
    assert one.split(one.hide("<|im_end|>x")) == [Literal("<|im_end|>x")]


def test_what_is_left_after_hiding_cannot_close_into_a_special_text() -> None:
    one = guard()
    segments = one.split(one.hide("<|im_<|im_end|>end|>"))
    assert segments == [Text("<|im_"), Literal("<|im_end|>"), Text("end|>")]


def test_a_stand_in_of_another_request_is_ordinary_text() -> None:
    stolen = guard(2**63 + 1).hide("<s>")
    one = guard(2**63 + 2)
    assert one.split(one.hide(stolen)) == [Text(stolen)]


def test_without_special_tokens_text_passes_unchanged() -> None:
    one = LiteralGuard(special=SpecialTexts.of(()), nonce=2**63)
    assert one.hide("<s>") == "<s>"


def test_strings_inside_json_are_hidden_keys_included() -> None:
    one = guard()
    hidden = one.hide_all({"<s>": ["<|im_end|>", 1, None, {"k": "<s>"}]})
    assert "<s>" not in json.dumps(hidden)
    assert "<|im_end|>" not in json.dumps(hidden)


@given(st.lists(st.sampled_from([*SPECIAL, "text ", "<|", "|>", "\ue000", "é"]), max_size=20).map("".join))
def test_no_text_segment_of_content_holds_special_text_and_nothing_is_lost(content: str) -> None:
    one = guard()
    hidden = one.hide(content)
    for changed in (hidden, hidden.strip(), hidden.upper(), json.loads(json.dumps(hidden))):
        texts = [segment.text for segment in one.split(changed) if isinstance(segment, Text)]
        assert not any(special in text for special in SPECIAL for text in texts)
    assert "".join(segment.text for segment in one.split(hidden) if isinstance(segment, Text | Literal)) == content


def _reserved(count: int) -> list[str]:
    return [f"<|reserved_special_token_{number}|>" for number in range(count)]


def _naive_spans(texts: set[str], content: str) -> list[tuple[int, int]]:
    """Find the longest text at each place by trying all of them."""
    found, position = [], 0
    while position < len(content):
        length = max((len(text) for text in texts if content.startswith(text, position)), default=0)
        if length:
            found.append((position, position + length))
        position += length or 1
    return found


@given(
    st.sets(st.text("ab<|é^]", min_size=1, max_size=6), min_size=1, max_size=12),
    st.text("ab<|é^]", max_size=80),
    st.integers(1, 20),
)
def test_the_matcher_finds_what_trying_every_text_finds(texts: set[str], content: str, slice_length: int) -> None:
    special = SpecialTexts.of(texts)
    assert special is not None
    with mock.patch.object(literals, "_SLICE", slice_length):
        assert list(special.spans(content)) == _naive_spans(texts, content)


def test_texts_that_nest_deeper_than_any_vocabulary_are_found() -> None:
    texts = {"a" * length for length in range(1, 200)}
    special = SpecialTexts.of(texts)
    assert special is not None
    assert list(special.spans("a" * 500)) == [(0, 199), (199, 398), (398, 500)]


def _search_s(tokens: int, content: str) -> float:
    special = SpecialTexts.of(_reserved(tokens))
    assert special is not None
    begun_s = time.process_time()
    assert list(special.spans(content)) == []
    return time.process_time() - begun_s


def test_the_search_costs_the_length_of_the_text_whatever_the_vocabulary() -> None:
    hostile = "<|reserved_special_token_" * (2**20 // 25)  # each place begins like every text
    few = max(_search_s(16, hostile), 0.001)
    assert _search_s(6_244, hostile) < 10 * few
    assert _search_s(6_244, hostile * 4) < 10 * 4 * few


def test_more_texts_than_a_prompt_may_hold_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="special tokens"):
        guard().hide("<s>a" * (HIDDEN_MAX + 1))

"""User text never becomes a special token."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.prepare.literals import Literal, LiteralGuard, Text, special_pattern

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x")


def guard(nonce: int = 2**63 + 5) -> LiteralGuard:
    return LiteralGuard(pattern=special_pattern(SPECIAL), nonce=nonce)


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
    one = LiteralGuard(pattern=special_pattern(()), nonce=2**63)
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

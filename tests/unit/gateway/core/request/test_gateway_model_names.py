"""Names of models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ModelNotFound
from gateway.core.request.model_names import parse_model_name


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("demo", "demo:latest"),
        ("demo:q4", "demo:q4"),
        ("library/demo", "demo:latest"),
        ("Someone/Demo:1.5", "Someone/Demo:1.5"),
        ("registry.ollama.ai/library/demo", "demo:latest"),
        ("hf.co/user/repo:Q4_K_M", "hf.co/user/repo:Q4_K_M"),
        ("localhost:5000/user/repo", "localhost:5000/user/repo:latest"),
    ],
)
def test_defaults_are_filled_in_and_left_out_again(text: str, short: str) -> None:
    assert parse_model_name(text).short == short


@pytest.mark.parametrize(("one", "other"), [("Demo", "demo:LATEST"), ("library/demo", "demo"), ("A/b:C", "a/B:c")])
def test_spellings_of_one_name_have_one_key(one: str, other: str) -> None:
    assert parse_model_name(one).key == parse_model_name(other).key


@pytest.mark.parametrize(
    "text",
    ["", ":", "demo:", ":q4", "../etc/passwd", "a//b", "a/b/c/d", ".demo", "demo\0", "na.me/demo", "C:\\x", "d" * 81],
)
def test_what_is_no_name_is_a_model_that_nobody_has(text: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse_model_name(text)
    assert caught.value.message == f"model '{text}' not found"


@given(st.text(max_size=200))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = parse_model_name(text)
    except ModelNotFound:
        return
    assert parse_model_name(name.short).key == name.key

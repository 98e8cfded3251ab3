"""Modelfiles: read as people write them, and read back as they were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.core.modelfile import ModelfileInvalid, create_body, parse_modelfile
from common.modelfile import TRIPLE, Modelfile, modelfile_text, quoted, unquoted

WRITTEN = '''
# A comment
FROM ./weights.gguf
FROM mmproj.gguf
ADAPTER "my adapter.gguf"
parameter temperature 0.5
PARAMETER stop "</s>"
PARAMETER stop <|im_end|>
PARAMETER num_ctx 4096
PARAMETER use_mmap false
SYSTEM """You are
# not a comment
"terse"."""
TEMPLATE """{{ .Prompt }}"""
MESSAGE user Hello there
MESSAGE assistant """Hi.
Yes?"""
LICENSE MIT
LICENSE """
Two
"""
PARSER qwen3
REQUIRES 0.14.0
'''


def test_every_instruction_is_read() -> None:
    read = parse_modelfile(WRITTEN)
    assert read.sources == ("./weights.gguf", "mmproj.gguf")
    assert read.adapters == ("my adapter.gguf",)
    assert read.system == 'You are\n# not a comment\n"terse".'
    assert read.template == "{{ .Prompt }}"
    assert read.messages == (("user", "Hello there"), ("assistant", "Hi.\nYes?"))
    assert read.licenses == ("MIT", "\nTwo\n")
    assert (read.parser, read.renderer) == ("qwen3", None)


def test_parameters_get_the_types_of_their_options() -> None:
    body = create_body("mine", parse_modelfile(WRITTEN))
    assert body["parameters"] == {
        "temperature": 0.5,
        "stop": ["</s>", "<|im_end|>"],
        "num_ctx": 4096,
        "use_mmap": False,
    }
    assert body["license"] == ["MIT", "\nTwo\n"]
    assert body["messages"] == [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "Hi.\nYes?"},
    ]
    assert "renderer" not in body


def test_what_is_not_said_is_not_sent() -> None:
    assert create_body("mine", parse_modelfile("FROM demo")) == {"model": "mine"}
    assert create_body("mine", parse_modelfile('FROM demo\nSYSTEM ""')) == {"model": "mine", "system": ""}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no FROM"),
        ("SYSTEM hi", "there is no FROM"),
        ("FROM", "line 1: FROM has no value"),
        ("FROM demo\nTEMPERATURE 1", "line 2: there is no instruction TEMPERATURE"),
        ('FROM demo\n\nSYSTEM """open\nand open', "line 3: a quote is not closed"),
        ("FROM demo\nMESSAGE robot hi", "line 2: the role of a message is system, user or assistant, not robot"),
        ("FROM demo\nPARAMETER temperature", "line 2: PARAMETER temperature has no value"),
        ("FROM demo\nPARAMETER", "line 2: PARAMETER has no value"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, why: str) -> None:
    with pytest.raises(ModelfileInvalid) as caught:
        parse_modelfile(text)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("num_ctx", "many", "parameter num_ctx is a whole number, not 'many'"),
        ("temperature", "hot", "parameter temperature is a number, not 'hot'"),
        ("temperature", "nan", "parameter temperature is a number, not 'nan'"),
        ("use_mmap", "perhaps", "parameter use_mmap is true or false, not 'perhaps'"),
    ],
)
def test_a_parameter_of_the_wrong_type_is_named(name: str, value: str, why: str) -> None:
    with pytest.raises(ModelfileInvalid, match=why):
        create_body("mine", Modelfile(sources=("demo",), parameters=((name, value),)))


def can_be_written(value: str) -> bool:
    """Triple quotes before the end of a line end a text: no Modelfile can hold that."""
    ends = [index for index, character in enumerate(value) if character == "\n"]
    whole = quoted(value)
    opened = [f"{TRIPLE}{value[:end]}".strip() for end in ends] if whole.startswith(TRIPLE) else []
    return not any(unquoted(one) is not None for one in opened)


TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=60).filter(can_be_written)
VALUES = TEXTS.filter(bool)
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
MODELFILES = st.builds(
    Modelfile,
    sources=st.lists(VALUES, min_size=1, max_size=2).map(tuple),
    adapters=st.lists(VALUES, max_size=2).map(tuple),
    template=st.none() | TEXTS,
    system=st.none() | TEXTS,
    parameters=st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple),
    messages=st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXTS), max_size=3).map(tuple),
    licenses=st.lists(TEXTS, max_size=2).map(tuple),
    renderer=st.none() | TEXTS,
    parser=st.none() | TEXTS,
)


@given(MODELFILES)
def test_what_is_written_is_read_back(modelfile: Modelfile) -> None:
    assert parse_modelfile(modelfile_text(modelfile)) == modelfile


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        parse_modelfile(text)
    except ModelfileInvalid as error:
        assert str(error)  # noqa: PT017  # that it has words is the point


def test_lines_of_other_systems_are_read_alike() -> None:
    assert parse_modelfile("\ufeffFROM demo\r\nSYSTEM hi\r\n") == Modelfile(sources=("demo",), system="hi")

"""Reasoning and tool calls told from content, for every split of the text."""

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.output_parsers.events import CallArguments, CallBegan, Content, Event, Reasoning
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.parser import EventParser, joined
from gateway.core.output_parsers.syntax import CallFamily, OutputSyntax, syntax_of

THINK = ("<think>", "</think>")
TOOLS = frozenset({"weather", "search", "brave_search"})
WEATHER = '{"city": "Köln", "days": [1, 2]}'

# Families whose templates tell more than the family.
SYNTAXES = {
    CallFamily.TAGGED: syntax_of("<minimax:tool_call>", has_tools=True),
    CallFamily.SECTION: syntax_of("<TOOLCALL>", has_tools=True),
}


def parser(
    family: CallFamily, *, reasoning: tuple[str, str] | None = THINK, in_reasoning: bool = False, tools: bool = True
) -> EventParser:
    readers = Readers(
        syntax=replace(SYNTAXES.get(family, OutputSyntax(family=family)), reasoning=reasoning),
        tool_names=TOOLS if tools else frozenset(),
        types={"weather": {"city": "string", "days": "array"}},
    )
    return EventParser(readers, in_reasoning=in_reasoning)


def read(reader: EventParser, pieces: Iterable[str]) -> list[Event]:
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece)
    return joined(events + reader.finish())


def calls(events: list[Event]) -> list[tuple[str, object]]:
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallBegan):
            found.append((event.name, ""))
        elif isinstance(event, CallArguments):
            name, raw = found.pop()
            found.append((name, raw + event.fragment))
    return [(name, json.loads(raw)) for name, raw in found]


def content(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def reasoning(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Reasoning))


ONE = [("weather", json.loads(WEATHER))]
CASES = [
    (CallFamily.HERMES, f'<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>', ONE, ""),
    (CallFamily.HERMES, f'Wait.\n<tool_call>{{"arguments": {WEATHER}, "name": "weather"}}</tool_call>', ONE, "Wait.\n"),
    (
        CallFamily.HERMES,
        (
            f'<tool_call>{{"name": "weather", "arguments": {WEATHER}}}</tool_call>\n'
            '<tool_call>{"name": "search"}</tool_call>'
        ),
        [*ONE, ("search", {})],
        "",
    ),
    (
        CallFamily.HERMES,
        (
            "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n"
            "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>"
        ),
        ONE,
        "",
    ),
    (CallFamily.HERMES, f'<tool_call>{{"name": "weather", "arguments": {json.dumps(WEATHER)}}}</tool_call>', ONE, ""),
    (CallFamily.LLAMA, f'{{"name": "weather", "parameters": {WEATHER}}}', ONE, ""),
    (CallFamily.LLAMA, f'<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}', ONE, ""),
    (
        CallFamily.LLAMA,
        f'{{"name": "weather", "parameters": {WEATHER}}}; {{"name": "search", "parameters": {{}}}}',
        [*ONE, ("search", {})],
        "",
    ),
    (CallFamily.LLAMA, '<|python_tag|>brave_search.call(query="x y")', [("brave_search", {"query": "x y"})], ""),
    (CallFamily.MISTRAL, f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}]', ONE, ""),
    (
        CallFamily.MISTRAL,
        f'[TOOL_CALLS][{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "search", "arguments": {{}}}}]',
        [*ONE, ("search", {})],
        "",
    ),
    (
        CallFamily.MISTRAL,
        f"Now.[TOOL_CALLS]weather[ARGS]{WEATHER}[TOOL_CALLS]search[ARGS]{{}}",
        [*ONE, ("search", {})],
        "Now.",
    ),
    (
        CallFamily.DEEPSEEK,
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            f"{WEATHER}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        ONE,
        "",
    ),
    (
        CallFamily.DEEPSEEK,
        (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{WEATHER}<｜tool▁call▁end｜>"
            "<｜tool▁call▁begin｜>search<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
        [*ONE, ("search", {})],
        "",
    ),
    (
        CallFamily.KIMI,
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
            f"{WEATHER}<|tool_call_end|><|tool_call_begin|>functions.search:1<|tool_call_argument_begin|>{{}}"
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
        [*ONE, ("search", {})],
        "",
    ),
    (CallFamily.GEMMA, 'So<|tool_call>call:weather{city:<|"|>Köln<|"|>,days:[1,2]}<tool_call|>', ONE, "So"),
    (
        CallFamily.GEMMA,
        '<|tool_call>call:search{a:{b:true,c:null},"d":-1.5}<tool_call|><|tool_call>call:search{}<tool_call|>',
        [("search", {"a": {"b": True, "c": None}, "d": -1.5}), ("search", {})],
        "",
    ),
    (CallFamily.GEMMA, "<|tool_call>call:search{a:}<tool_call|>", [], "<|tool_call>call:search{a:}<tool_call|>"),
    (
        CallFamily.PYTHON,
        "<|tool_call_start|>[weather(city='Köln', days=[1, 2]), search(deep=true)]<|tool_call_end|>Done.",
        [*ONE, ("search", {"deep": True})],
        "Done.",
    ),
    (
        CallFamily.PYTHON,
        "<|tool_call_start|>[search(q=open('x'))]<|tool_call_end|>",
        [],
        "<|tool_call_start|>[search(q=open('x'))]<|tool_call_end|>",
    ),
    (CallFamily.HARMONY, f" to=functions.weather<|channel|>commentary json<|message|>{WEATHER}<|call|>", ONE, ""),
    (
        CallFamily.HARMONY,
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
            f"<|constrain|>json<|message|>{WEATHER}<|call|>"
        ),
        ONE,
        "",
    ),
    (CallFamily.GENERIC, f'{{"name": "weather", "arguments": {WEATHER}}}', ONE, ""),
    (CallFamily.GENERIC, f'```json\n[{{"name": "weather", "parameters": {WEATHER}}}]\n```', ONE, ""),
    (
        CallFamily.GENERIC,
        f'[{{"name": "weather", "arguments": {WEATHER}}}, {{"name": "search"}}]',
        [*ONE, ("search", {})],
        "",
    ),
]


@pytest.mark.parametrize(("family", "text", "expected", "said"), CASES)
def test_calls_are_found_in_every_familys_form(
    family: CallFamily, text: str, expected: list[tuple[str, object]], said: str
) -> None:
    events = read(parser(family), [text])
    assert calls(events) == expected
    assert content(events) == said


@pytest.mark.parametrize(("family", "text", "expected", "said"), CASES)
def test_one_character_at_a_time_gives_the_same(
    family: CallFamily, text: str, expected: list[tuple[str, object]], said: str
) -> None:
    assert read(parser(family), text) == read(parser(family), [text])
    assert calls(read(parser(family), text)) == expected
    assert content(read(parser(family), text)) == said


@settings(max_examples=300)
@given(st.sampled_from(CASES), st.data())
def test_every_split_gives_the_same(case: tuple[CallFamily, str, object, str], data: st.DataObject) -> None:
    family, text, _, _ = case
    text = (
        data.draw(st.sampled_from(["", "<think>a <b</think>\n", "so: "]))
        + text
        + data.draw(st.sampled_from(["", " ok"]))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(parser(family), pieces) == read(parser(family), [text])


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "{", "}", "[", "]", '"name"', ":", '"weather"', '"arguments"', ",", " ", "\n", "x",
    "<think>", "</think>", "<function=", "<parameter=", ">", "</parameter>", "</function>", "[TOOL_CALLS]", "[ARGS]",
    "<|python_tag|>", "```", "json", "<|channel|>", "<|message|>", "<|end|>", "analysis", "to=functions.weather",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "function", "<｜tool▁call▁end｜>",
    '"', "\\", "<",
]  # fmt: skip


@settings(max_examples=500)
@given(st.sampled_from(list(CallFamily)), st.lists(st.sampled_from(FRAGMENTS), max_size=24), st.booleans(), st.data())
def test_nonsense_never_breaks_a_parser_and_splits_make_no_difference(
    family: CallFamily, fragments: list[str], in_reasoning: bool, data: st.DataObject
) -> None:
    text = "".join(fragments)
    cut = data.draw(st.integers(0, len(text)))
    whole = read(parser(family, in_reasoning=in_reasoning), [text])
    assert read(parser(family, in_reasoning=in_reasoning), [text[:cut], text[cut:]]) == whole
    assert read(parser(family, in_reasoning=in_reasoning), text) == whole


@settings(max_examples=1000)
@given(st.sampled_from([f for f in CallFamily if f is not CallFamily.HARMONY]), st.text('ab {}[]<>"`:,\n', max_size=40))
def test_text_without_markers_comes_out_as_it_went_in(family: CallFamily, text: str) -> None:
    assert content(read(parser(family, reasoning=None), [text])) == text


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (CallFamily.HERMES, "<tool_call>not json</tool_call>"),
        (CallFamily.HERMES, '<tool_call>{"city": "Köln"}'),
        (CallFamily.HERMES, "a <tool_ca"),
        (CallFamily.LLAMA, '{"name": "unknown", "parameters": {}}'),
        (CallFamily.LLAMA, '{"answer": 42}'),
        (CallFamily.LLAMA, "<|python_tag|>print(1 + 1)"),
        (CallFamily.MISTRAL, "[TOOL_CALLS] none"),
        (CallFamily.GENERIC, '{"name": "unknown", "arguments": {}}'),
        (CallFamily.GENERIC, "```python\nprint()\n```"),
        (CallFamily.GENERIC, "[1, 2, 3]"),
    ],
)
def test_what_only_resembles_a_call_is_content(family: CallFamily, text: str) -> None:
    events = read(parser(family), [text])
    assert calls(events) == []
    assert content(events) == text


def test_malformed_arguments_are_sent_as_they_are() -> None:
    events = read(parser(CallFamily.HERMES), ['<tool_call>{"name": "weather", "arguments": {"city": '])
    assert events == [CallBegan("weather"), CallArguments('{"city": ')]


def test_arguments_stream_while_they_are_written() -> None:
    reader = parser(CallFamily.HERMES)
    assert reader.feed('<tool_call>{"name": "weather", "arg') == [CallBegan("weather")]
    assert reader.feed('uments": {"city": "K') == [CallArguments('{"city": "K')]
    assert reader.feed('öln"}}') == [CallArguments('öln"}')]
    assert reader.feed("</tool_call>") == []


def test_reasoning_is_told_from_the_answer() -> None:
    events = read(parser(CallFamily.HERMES), ["<think>\nLet me see.", "</thi", "nk>\n\nForty-two."])
    assert events == [Reasoning("Let me see."), Content("Forty-two.")]


def test_reasoning_that_the_prompt_opened_needs_no_opening_marker() -> None:
    events = read(parser(CallFamily.NONE, in_reasoning=True), ["Let me see.</think>", "Forty-two."])
    assert events == [Reasoning("Let me see."), Content("Forty-two.")]


def test_harmony_channels() -> None:
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|return|>"
    assert read(parser(CallFamily.HARMONY), text) == [Reasoning("hm"), Content("Hello.")]


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "weather"}</tool_call>'
    assert content(read(parser(CallFamily.HERMES, tools=False), [text])) == text


@pytest.mark.parametrize(
    ("template", "family", "has_reasoning"),
    [
        ("…<tool_call>…<think>…</think>", CallFamily.HERMES, True),
        ("…[TOOL_CALLS]…", CallFamily.MISTRAL, False),
        ("…<|channel|>…<|message|>", CallFamily.HARMONY, False),
        ("…<｜tool▁calls▁begin｜>…</think><think>", CallFamily.DEEPSEEK, True),
        ("…<|python_tag|>…", CallFamily.LLAMA, False),
        ("{{ messages }}{{ tools }}", CallFamily.GENERIC, False),
    ],
)
def test_the_template_tells_the_family(template: str, family: CallFamily, has_reasoning: bool) -> None:
    syntax = syntax_of(template, has_tools=True)
    assert syntax.family is family
    assert (syntax.reasoning is not None) is has_reasoning


def test_without_markers_and_without_tools_there_is_no_syntax() -> None:
    assert syntax_of("{{ messages }}", has_tools=False) == OutputSyntax()


@given(st.text(st.sampled_from("call:a{}[](),.'\"\\<|>\x00 =x1eTrue\ud800"), max_size=40))
def test_calls_that_are_no_json_never_break_an_answer(text: str) -> None:
    for family, (begin, end) in {
        CallFamily.GEMMA: ("<|tool_call>", "<tool_call|>"),
        CallFamily.PYTHON: ("<|tool_call_start|>", "<|tool_call_end|>"),
    }.items():
        for inside in (text, f"call:weather{{{text}}}", f"[weather(a={text})]"):
            events = read(parser(family, reasoning=None), [begin, inside, end])
            if not calls(events):
                assert content(events) == f"{begin}{inside}{end}"


@pytest.mark.parametrize("value", ["b'1'", "{1}", "1j", "1e999", "NaN", "[" * 300, "-" * 5000 + "1", "9" * 5000])
def test_values_that_json_has_not_are_no_calls(value: str) -> None:
    whole = f"<|tool_call_start|>[weather(a={value})]<|tool_call_end|>"
    assert content(read(parser(CallFamily.PYTHON), [whole])) == whole

"""Calls at the edges of an output syntax: limits, broken values, texts that look like something else."""

import pytest

from gateway.core.output_parsers.events import CallArguments, CallBegan, Content, Reasoning
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.json_scan import DEPTH_MAX
from gateway.core.output_parsers.parser import EventParser
from gateway.core.output_parsers.readers import HEADER_CHARS_MAX, MarkerMatch, find_marker
from gateway.core.output_parsers.syntax import CallFamily, OutputSyntax, syntax_of, syntax_of_parser
from tests.unit.gateway.core.output_parsers.test_output_parsers import THINK, TOOLS, calls, content, parser, read


def both(family: CallFamily, text: str) -> list[object]:
    """Parse a text, in one piece and in any split, and return its events, which must be the same."""
    whole = read(parser(family), [text])
    assert read(parser(family), text) == whole
    return list(whole)


def test_of_markers_at_the_same_place_the_longest_counts_once_it_is_certain() -> None:
    assert find_marker("a<x>b", ["<x", "<x>"]) == MarkerMatch(before="a", marker="<x>", rest="b")
    assert find_marker("a<x>b", ["<x>", "<x"]) == MarkerMatch(before="a", marker="<x>", rest="b")
    assert find_marker("a<x", ["<x", "<x>"]) == MarkerMatch(before="a", marker="", rest="<x")
    assert find_marker("a<xb", ["<x", "<x>"]) == MarkerMatch(before="a", marker="<x", rest="b")


def test_the_first_marker_counts_before_one_that_may_still_come() -> None:
    assert find_marker("a<x>b<y", ["<x>", "<y>"]) == MarkerMatch(before="a", marker="<x>", rest="b<y")
    assert find_marker("a<y<x", ["<x>", "<y>"]) == MarkerMatch(before="a<y", marker="", rest="<x")


@pytest.mark.parametrize(("length", "is_call"), [(HEADER_CHARS_MAX, True), (HEADER_CHARS_MAX + 1, False)])
def test_a_header_that_does_not_end_in_time_is_text_in_every_split(length: int, is_call: bool) -> None:
    text = f"[TOOL_CALLS]{'w' * length}[ARGS]{{}}"
    events = both(CallFamily.MISTRAL, text)
    assert events == ([CallBegan("w" * length), CallArguments("{}")] if is_call else [Content(text)])


def test_a_call_behind_a_header_that_does_not_end_is_found_in_every_split() -> None:
    long = f"[TOOL_CALLS]{'w' * HEADER_CHARS_MAX}"
    events = both(CallFamily.MISTRAL, f"{long}[TOOL_CALLS]search[ARGS]{{}}")
    assert events == [Content(long), CallBegan("search"), CallArguments("{}")]


def test_white_space_behind_a_marker_is_layout_however_it_comes() -> None:
    assert read(parser(CallFamily.HERMES), ["<think>a</think>", "\n", " ", "\n", "b \n"]) == [
        Reasoning("a"),
        Content("b \n"),
    ]


def test_quotes_and_brackets_inside_of_texts_end_nothing() -> None:
    arguments = r'{"q": "a\\\"}] \\\\"}'
    text = f'<tool_call>{{"name": "search", "arguments": {arguments}}}</tool_call>ok'
    assert both(CallFamily.HERMES, text) == [CallBegan("search"), CallArguments(arguments), Content("ok")]


def test_a_value_deeper_than_any_call_is_given_up_where_it_is_too_deep() -> None:
    def nested(depth: int) -> str:
        return '{"a":' * depth + "1" + "}" * depth

    events = both(CallFamily.MISTRAL, f"[TOOL_CALLS]search[ARGS]{nested(DEPTH_MAX)}")
    assert events == [CallBegan("search"), CallArguments(nested(DEPTH_MAX))]
    events = both(CallFamily.MISTRAL, f"[TOOL_CALLS]search[ARGS]{nested(DEPTH_MAX + 1)}")
    assert events[:2] == [CallBegan("search"), CallArguments('{"a":' * DEPTH_MAX)]
    gemma = f"<|tool_call>call:search{'{a:' * 90}1{'}' * 90}<tool_call|>"
    assert both(CallFamily.GEMMA, gemma) == [Content(gemma)]


def test_brackets_that_close_what_was_not_opened_break_arguments_off() -> None:
    events = both(CallFamily.MISTRAL, '[TOOL_CALLS]search[ARGS]{"a": [1}')
    assert events[:2] == [CallBegan("search"), CallArguments('{"a": [1')]


def test_what_follows_broken_arguments_is_said_once() -> None:
    events = both(CallFamily.HERMES, '<tool_call>{"name": "weather", "arguments": {"city": ]}}</tool_call>')
    assert events == [CallBegan("weather"), CallArguments('{"city": '), Content("]}}</tool_call>")]


def test_a_name_that_nobody_could_have_given_a_tool_is_no_name() -> None:
    for name in ("", "n" * 257):
        text = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
        assert both(CallFamily.HERMES, text) == [Content(text)]


def test_a_marked_call_need_not_name_a_known_tool_and_a_guess_must() -> None:
    assert both(CallFamily.HERMES, '<tool_call>{"name": "unknown"}</tool_call>') == [
        CallBegan("unknown"),
        CallArguments("{}"),
    ]
    assert both(CallFamily.GENERIC, '{"name": "unknown"}') == [Content('{"name": "unknown"}')]


def test_arguments_of_null_are_none_and_a_number_is_no_call() -> None:
    null = '<tool_call>{"arguments": null, "name": "search"}</tool_call>'
    assert both(CallFamily.HERMES, null) == [CallBegan("search"), CallArguments("{}")]
    number = '<tool_call>{"arguments": 5, "name": "search"}</tool_call>'
    assert both(CallFamily.HERMES, number) == [Content(number)]


def test_a_call_that_ends_before_its_arguments_has_none() -> None:
    assert both(CallFamily.MISTRAL, "[TOOL_CALLS]search[ARGS]") == [CallBegan("search"), CallArguments("{}")]


def test_arguments_before_a_name_are_held_only_so_long() -> None:
    text = '<tool_call>{"arguments": {"q": "' + "x" * 70_000 + '"}, "name": "search"}</tool_call>'
    assert content(read(parser(CallFamily.HERMES), [text])) == text
    assert calls(read(parser(CallFamily.HERMES), [text])) == []


def test_the_declared_type_says_what_a_value_between_tags_is() -> None:
    def tagged(name: str, value: str) -> str:
        return f"<tool_call><function=weather><parameter={name}>{value}</parameter></function></tool_call>"

    def value_of(name: str, value: str) -> object:
        ((_, arguments),) = calls(read(parser(CallFamily.HERMES), [tagged(name, value)]))
        assert isinstance(arguments, dict)
        return arguments[name]

    assert value_of("city", "12") == "12"  # a string, as the tool declares it
    assert value_of("other", "12") == 12
    assert value_of("other", "twelve") == "twelve"
    assert value_of("city", "\n  two\n lines \n") == "  two\n lines "  # one line end on each side is layout
    no_arguments = "<tool_call><function=search></function></tool_call>"
    assert calls(read(parser(CallFamily.HERMES), [no_arguments])) == [("search", {})]


def test_what_a_model_says_beside_its_calls_is_no_reasoning() -> None:
    text = (
        "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>"
    )
    assert both(CallFamily.HARMONY, text) == [Content("I will look.Hi.")]


def test_only_the_method_call_of_a_built_in_tool_calls_it() -> None:
    text = '<|python_tag|>brave_search.run(query="x")'
    assert both(CallFamily.LLAMA, text) == [Content(text)]


def test_the_longest_name_of_a_parser_that_fits_is_meant_and_passthrough_reads_nothing() -> None:
    plain, coder = syntax_of_parser("qwen3"), syntax_of_parser("Qwen3-Coder-Next")
    assert plain is not None
    assert coder is not None
    assert (plain.tags, coder.tags is None) == (None, False)
    passed = syntax_of_parser("passthrough")
    assert passed is not None
    assert (passed.family, passed.reasoning) == (CallFamily.NONE, None)
    assert syntax_of_parser("of-tomorrow") is None


@pytest.mark.parametrize("family", [CallFamily.HERMES, CallFamily.GENERIC, CallFamily.LLAMA])
def test_an_answer_that_is_data_has_no_calls_and_may_have_reasoning_before_it(family: CallFamily) -> None:
    def data(text: str) -> list[object]:
        syntax = OutputSyntax(family=family, reasoning=THINK)
        readers = Readers(syntax=syntax, tool_names=TOOLS, is_data=True)
        whole = read(EventParser(readers), [text])
        assert read(EventParser(readers), text) == whole
        return list(whole)

    for answer in ('{"name": "weather", "arguments": {}}', '<tool_call>{"name": "weather"}</tool_call>', "<think>"):
        assert data(f"<think>hm</think>\n{answer}") == [Reasoning("hm"), Content(answer)]
    assert data(' {"name": "weather"} <think>') == [Content(' {"name": "weather"} <think>')]


@pytest.mark.parametrize(("says", "value"), [("true", "12"), ("false", 12)])
def test_a_model_that_says_what_is_a_text_is_believed_where_the_tool_declares_nothing(says: str, value: object) -> None:
    syntax = syntax_of("<｜DSML｜function_calls>", has_tools=True)
    text = (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="search">\n'
        f'<｜DSML｜parameter name="q" string="{says}">12</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    )
    reader = EventParser(Readers(syntax=syntax, tool_names=TOOLS))
    assert calls(read(reader, [text])) == [("search", {"q": value})]

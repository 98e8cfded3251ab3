"""Output parsers of each family."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.core.output_parsers.events import Content, Event, Reasoning
from gateway.core.output_parsers.json_call import HELD_CHARS_MAX
from gateway.core.output_parsers.readers import (
    ArgumentsReader,
    Beginning,
    CallReader,
    Enter,
    Gap,
    HeaderReader,
    Next,
    OutputReader,
    ParametersReader,
    Prose,
    PutBack,
    Say,
)
from gateway.core.output_parsers.syntax import HERMES_TAGS, CallFamily, OutputSyntax, Tags
from gateway.core.output_parsers.written_calls import gemma_call, python_call, python_calls

_FUNCTION_TO = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,256})")
_KIMI_NAME = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")
_TO = "to=functions."
_FENCE = "```"


@dataclass(slots=True, kw_only=True)
class Readers:
    """Makes the readers of one answer. `types`: JSON type of each parameter, by tool.

    `is_data`: all that is not reasoning is content, whatever it looks like.
    """

    syntax: OutputSyntax
    tool_names: frozenset[str]
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    is_data: bool = False

    def first(self, *, in_reasoning: bool) -> OutputReader:
        """Return the reader of an answer's beginning; `in_reasoning`: the prompt has opened the reasoning already."""
        if self.syntax.family is CallFamily.HARMONY:
            return self._harmony()
        if in_reasoning and self.syntax.reasoning is not None:
            return self._reasoning()
        if self.is_data:
            return self._data_behind_reasoning()
        return self._start()

    def _data_behind_reasoning(self) -> OutputReader:
        if self.syntax.reasoning is None:
            return self._data()
        opening = self.syntax.reasoning[0]
        return Beginning({opening: lambda: Enter(opening, lambda _: self._reasoning())}, self._data)

    def _data(self) -> OutputReader:
        return Prose(Content, {})

    def _start(self) -> OutputReader:
        """Return the first reader if only the first character distinguishes calls from text."""
        if not self.tool_names:
            return self._prose()
        match self.syntax.family:
            case CallFamily.LLAMA:
                return Beginning({"{": self._bare_call}, self._prose)
            case CallFamily.GENERIC:
                doors: dict[str, Next] = {"{": self._bare_call, "[": self._bare_calls, _FENCE: self._fenced}
                return Beginning(doors, self._prose)
            case _:
                return self._prose()

    def _with_reasoning(self, doors: dict[str, Next]) -> dict[str, Next]:
        return doors if self.syntax.reasoning is None else {**doors, self.syntax.reasoning[0]: self._reasoning}

    def _prose(self, *, trim: bool = False) -> OutputReader:
        doors = self._call_doors() if self.tool_names else {}
        return Prose(Content, self._with_reasoning(doors), trim)

    def _call_doors(self) -> dict[str, Next]:
        """Return the markers that begin calls in the middle of a text."""
        if self.syntax.family is CallFamily.TAGGED:
            return self._tagged_doors()
        if self.syntax.section is not None:
            return {self.syntax.section.begin: self._section}
        doors: dict[CallFamily, dict[str, Next]] = {
            CallFamily.HERMES: {"<tool_call>": self._hermes},
            CallFamily.MISTRAL: {"[TOOL_CALLS]": self._mistral},
            CallFamily.DEEPSEEK: {
                "<｜tool▁calls▁begin｜>": self._deepseek_gap,
                "<｜tool▁call▁begin｜>": self._deepseek,
            },
            CallFamily.LLAMA: {"<|python_tag|>": self._python_tag},
            CallFamily.KIMI: {"<|tool_calls_section_begin|>": self._kimi_gap, "<|tool_call_begin|>": self._kimi},
            CallFamily.GEMMA: {"<|tool_call>": lambda: self._whole("<|tool_call>", "<tool_call|>", gemma_call)},
            CallFamily.PYTHON: {
                "<|tool_call_start|>": lambda: self._whole("<|tool_call_start|>", "<|tool_call_end|>", python_calls)
            },
        }
        return doors.get(self.syntax.family, {})

    def _trimmed(self) -> OutputReader:
        return self._prose(trim=True)

    def _reasoning(self) -> OutputReader:
        assert self.syntax.reasoning is not None
        return Prose(Reasoning, {self.syntax.reasoning[1]: self._after_reasoning}, True)

    def _after_reasoning(self) -> OutputReader:
        return Gap({}, self._data if self.is_data else self._start)

    def _call(self, opening: str, done: Next) -> OutputReader:
        """Read one JSON object. Behind a marker of calls its name need not be known."""
        is_guess = self.syntax.family in (CallFamily.LLAMA, CallFamily.GENERIC)
        return CallReader(self.tool_names.__contains__ if is_guess else bool, opening, done, self._prose)

    # Hermes and Qwen, and the form with tags that Qwen's coder models write.

    def _hermes(self) -> OutputReader:
        return Beginning(
            {"<function=": lambda: Enter("<function=", self._tagged)},
            lambda: self._call("<tool_call>", self._hermes_end),
        )

    def _hermes_end(self) -> OutputReader:
        return Gap({"</tool_call>": self._trimmed, "<tool_call>": self._hermes}, self._prose)

    def _tagged(self, taken: str) -> OutputReader:
        return self._parameters("<tool_call>" + taken, HERMES_TAGS, self._hermes_end)

    # Arguments between tags

    def _parameters(self, opening: str, tags: Tags, done: Next) -> OutputReader:
        behind = tags.name[1].strip()
        # Where nothing but a line end closes the name, so does whatever comes next.
        ends = (behind,) if behind else ("\n", tags.key[0], tags.end)

        def parameters(name: str, marker: str) -> OutputReader | None:
            name = name.strip()
            if not name:
                return None
            reader = ParametersReader(name, self.types.get(name, {}), tags, done)
            return PutBack(marker, reader) if marker in (tags.key[0], tags.end) else reader

        return HeaderReader(opening, ends, parameters, self._prose)

    def _tagged_doors(self) -> dict[str, Next]:
        tags = self.syntax.tags
        assert tags is not None
        begin = tags.section[0].strip()
        call: dict[str, Next] = {tags.name[0]: lambda: self._parameters(tags.name[0], tags, self._tagged_gap)}
        return {begin: self._tagged_gap, **call} if begin else call

    def _tagged_gap(self) -> OutputReader:
        tags = self.syntax.tags
        assert tags is not None
        end = tags.section[1].strip()
        doors = self._tagged_doors()
        return Gap({**doors, end: self._tagged_gap} if end else doors, self._trimmed)

    # JSON between two markers

    def _section(self) -> OutputReader:
        assert self.syntax.section is not None
        begin, end = self.syntax.section.begin, self.syntax.section.end
        calls: Callable[[], OutputReader] = lambda: self._call(begin, self._section_gap)  # noqa: E731  # a continuation
        return Gap({"[": calls, end: self._trimmed}, calls)

    def _section_gap(self) -> OutputReader:
        assert self.syntax.section is not None
        more: Callable[[], OutputReader] = lambda: self._call("", self._section_gap)  # noqa: E731  # a continuation
        doors: dict[str, Next] = {",": more, "]": self._section_gap, self.syntax.section.end: self._trimmed}
        return Gap(doors, lambda: Beginning({"{": more}, self._trimmed))

    # Llama 3

    def _bare_call(self) -> OutputReader:
        return self._call("", self._more_calls)

    def _more_calls(self) -> OutputReader:
        return Gap({";": lambda: self._call(";", self._more_calls), "<|python_tag|>": self._python_tag}, self._prose)

    def _python_tag(self) -> OutputReader:
        tag = "<|python_tag|>"

        def built_in(call: str, _: str) -> OutputReader | None:
            events = python_call(call)
            return None if events is None else Say(list(events), self._trimmed)

        return Beginning(
            {"{": lambda: self._call(tag, self._more_calls)}, lambda: HeaderReader(tag, (")",), built_in, self._prose)
        )

    # Any model that answers with nothing but JSON

    def _bare_calls(self) -> OutputReader:
        return Enter("[", lambda taken: self._call(taken, self._array_gap))

    def _array_gap(self) -> OutputReader:
        return Gap({",": lambda: self._call(",", self._array_gap), "]": self._trimmed}, self._prose)

    def _fenced(self) -> OutputReader:
        def fence(taken: str) -> OutputReader:
            def inside(language: str, end: str) -> OutputReader | None:
                if language.strip() not in ("", "json", "tool_call"):
                    return None
                opening = taken + language + end
                return Beginning(
                    {"[": lambda: Enter("[", lambda more: self._call(opening + more, self._fence_array))},
                    lambda: self._call(opening, self._fence_end),
                )

            return HeaderReader(taken, ("\n",), inside, self._prose)

        return Enter(_FENCE, fence)

    def _fence_array(self) -> OutputReader:
        return Gap({",": lambda: self._call(",", self._fence_array), "]": self._fence_end}, self._prose)

    def _fence_end(self) -> OutputReader:
        return Gap({_FENCE: self._trimmed}, self._prose)

    # Mistral

    def _mistral(self) -> OutputReader:
        def named(name: str, _: str) -> OutputReader | None:
            name = name.partition("[CALL_ID]")[0].strip()
            return ArgumentsReader(name, self._trimmed) if name else None

        return Beginning(
            {"[": lambda: Enter("[", lambda taken: self._call("[TOOL_CALLS]" + taken, self._array_gap))},
            lambda: HeaderReader("[TOOL_CALLS]", ("[ARGS]",), named, self._prose),
        )

    # DeepSeek

    def _deepseek_gap(self) -> OutputReader:
        return Gap({"<｜tool▁call▁begin｜>": self._deepseek, "<｜tool▁calls▁end｜>": self._trimmed}, self._prose)

    def _deepseek(self) -> OutputReader:
        opening = "<｜tool▁call▁begin｜>"

        def header(text: str, marker: str) -> OutputReader | None:
            name = text.strip()
            if name != "function":
                return ArgumentsReader(name, self._deepseek_end) if name else None
            return HeaderReader(opening + text + marker, ("\n",), old_name, self._prose)

        def old_name(text: str, _: str) -> OutputReader | None:
            name = text.strip()
            if not name:
                return None
            arguments = lambda: ArgumentsReader(name, self._deepseek_end)  # noqa: E731  # a continuation, as all of these
            return Gap({"```json": arguments}, arguments)

        return HeaderReader(opening, ("<｜tool▁sep｜>",), header, self._prose)

    def _deepseek_end(self) -> OutputReader:
        return Gap({_FENCE: self._deepseek_end, "<｜tool▁call▁end｜>": self._deepseek_gap}, self._deepseek_gap)

    # Calls that are no JSON: known once they are complete

    def _whole(self, begin: str, end: str, read: Callable[[str], tuple[Event, ...] | None]) -> OutputReader:
        def inside(text: str, _: str) -> OutputReader | None:
            events = read(text)
            return None if events is None else Say(list(events), self._trimmed)

        return HeaderReader(begin, (end,), inside, self._prose, HELD_CHARS_MAX)

    # Kimi

    def _kimi_gap(self) -> OutputReader:
        return Gap({"<|tool_call_begin|>": self._kimi, "<|tool_calls_section_end|>": self._trimmed}, self._prose)

    def _kimi(self) -> OutputReader:
        def named(text: str, _: str) -> OutputReader | None:
            found = _KIMI_NAME.fullmatch(text.strip())
            return None if found is None else ArgumentsReader(found[1], self._kimi_end)

        return HeaderReader("<|tool_call_begin|>", ("<|tool_call_argument_begin|>",), named, self._prose)

    def _kimi_end(self) -> OutputReader:
        return Gap({"<|tool_call_end|>": self._kimi_gap}, self._kimi_gap)

    # Harmony: every message has a header, and its channel says what it is.

    def _harmony(self) -> OutputReader:
        return Gap(
            dict.fromkeys(("<|channel|>", "<|start|>"), self._harmony_header)
            | dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), self._harmony)
            # An answer may go on with the header that the prompt began.
            | {_TO: lambda: PutBack(_TO, self._harmony_header())},
            lambda: self._harmony_body(Content),
        )

    def _harmony_header(self) -> OutputReader:
        return HeaderReader("", ("<|message|>",), self._harmony_message, self._harmony)

    def _harmony_message(self, header: str, _: str) -> OutputReader:
        to = _FUNCTION_TO.search(header)
        if to is not None:
            return ArgumentsReader(to[1], self._harmony)
        return self._harmony_body(Reasoning if "analysis" in header else Content)

    def _harmony_body(self, kind: type[Content] | type[Reasoning]) -> OutputReader:
        if self.is_data and kind is Content:
            return self._data()
        ends: dict[str, Next] = dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), self._harmony)
        heads: dict[str, Next] = dict.fromkeys(("<|start|>", "<|channel|>"), self._harmony_header)
        return Prose(kind, ends | heads)

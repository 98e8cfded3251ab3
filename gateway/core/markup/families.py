"""The families of markup, and how each is read."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.markup.events import Content, Reasoning
from gateway.core.markup.parameters import Parameters
from gateway.core.markup.python_call import python_call
from gateway.core.markup.readers import Arguments, Beginning, Call, Enter, Gap, Header, Next, Prose, Reader, Say


class Family(StrEnum):
    """How a model writes tool calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    DEEPSEEK = "deepseek"
    HARMONY = "harmony"
    GENERIC = "generic"
    NONE = "none"


class Form(StrEnum):
    """How the models of a family write one call, where they differ."""

    JSON = "json"  # name and arguments as one object
    NAMED = "named"  # a name, and the arguments as an object
    TAGS = "tags"  # a name, and each argument between tags
    FENCED = "fenced"  # a name, and the arguments in a block of code


# Texts whose presence in a template tells the form; the last is what it is otherwise.
_FORMS = {
    Family.HERMES: (("<function=", Form.TAGS), ("", Form.JSON)),
    Family.MISTRAL: (("[ARGS]", Form.NAMED), ("", Form.JSON)),
    Family.DEEPSEEK: (("```json", Form.FENCED), ("", Form.NAMED)),
}
# Markers whose presence in a template tells the family; the first that is there counts.
_TELLTALES = (
    (Family.HARMONY, "<|channel|>"),
    (Family.DEEPSEEK, "<｜tool▁calls▁begin｜>"),
    (Family.MISTRAL, "[TOOL_CALLS]"),
    (Family.HERMES, "<tool_call>"),
    (Family.LLAMA, "<|python_tag|>"),
    (Family.LLAMA, '"parameters"'),
)
# Pairs that enclose reasoning.
_REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
)
_MARKERS = {
    Family.HARMONY: ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"),
    Family.DEEPSEEK: (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    Family.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    Family.HERMES: ("<tool_call>", "</tool_call>"),
    Family.LLAMA: ("<|python_tag|>",),
}
_FUNCTION_TO = re.compile(r"to=functions\.([A-Za-z0-9_.-]{1,256})")
_FENCE = "```"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """What a template's models write around their answers."""

    family: Family = Family.NONE
    reasoning: tuple[str, str] | None = None
    form: Form = Form.JSON

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must reach the parser although they may be special tokens."""
        return (*_MARKERS.get(self.family, ()), *(self.reasoning or ()))


def markup_of(template: str, *, has_tools: bool) -> Markup:
    """The markup of a chat template, told by the template alone."""
    family = next((family for family, telltale in _TELLTALES if telltale in template), Family.NONE)
    if family is Family.NONE and has_tools:
        family = Family.GENERIC
    reasoning = next((pair for pair in _REASONING if all(marker in template for marker in pair)), None)
    form = next((form for text, form in _FORMS.get(family, ()) if text in template), Form.JSON)
    return Markup(family=family, reasoning=reasoning, form=form)


@dataclass(slots=True, kw_only=True)
class Readers:
    """Makes the readers of one answer. `types`: JSON type of each parameter, by tool.

    `is_data`: all that is not reasoning is content, whatever it looks like.
    """

    markup: Markup
    tool_names: frozenset[str]
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    is_data: bool = False

    def first(self, *, in_reasoning: bool) -> Reader:
        """How an answer begins; `in_reasoning`: the prompt has opened the reasoning already."""
        if self.markup.family is Family.HARMONY:
            return self._harmony()
        if in_reasoning and self.markup.reasoning is not None:
            return self._reasoning()
        if self.is_data:
            return self._data_behind_reasoning()
        return self._start()

    def _data_behind_reasoning(self) -> Reader:
        if self.markup.reasoning is None:
            return self._data()
        opening = self.markup.reasoning[0]
        return Beginning({opening: lambda: Enter(opening, lambda _: self._reasoning())}, self._data)

    def _data(self) -> Reader:
        return Prose(Content, {})

    def _start(self) -> Reader:
        """How an answer begins where nothing but its first character tells calls from text."""
        if not self.tool_names:
            return self._prose()
        match self.markup.family:
            case Family.LLAMA:
                return Beginning({"{": self._bare_call}, self._prose)
            case Family.GENERIC:
                doors: dict[str, Next] = {"{": self._bare_call, "[": self._bare_calls, _FENCE: self._fenced}
                return Beginning(doors, self._prose)
            case _:
                return self._prose()

    def _with_reasoning(self, doors: dict[str, Next]) -> dict[str, Next]:
        return doors if self.markup.reasoning is None else {**doors, self.markup.reasoning[0]: self._reasoning}

    def _prose(self, *, trim: bool = False) -> Reader:
        doors: dict[str, Next] = {}
        if self.tool_names:
            match self.markup.family:
                case Family.HERMES:
                    doors["<tool_call>"] = self._hermes
                case Family.MISTRAL:
                    doors["[TOOL_CALLS]"] = self._mistral
                case Family.DEEPSEEK:
                    doors["<｜tool▁calls▁begin｜>"] = self._deepseek_gap
                    doors["<｜tool▁call▁begin｜>"] = self._deepseek
                case Family.LLAMA:
                    doors["<|python_tag|>"] = self._python_tag
                case _:
                    pass
        return Prose(Content, self._with_reasoning(doors), trim)

    def _trimmed(self) -> Reader:
        return self._prose(trim=True)

    def _reasoning(self) -> Reader:
        assert self.markup.reasoning is not None
        return Prose(Reasoning, {self.markup.reasoning[1]: self._after_reasoning}, True)

    def _after_reasoning(self) -> Reader:
        return Gap({}, self._data if self.is_data else self._start)

    def _knows(self, name: str) -> bool:
        return name in self.tool_names

    def _call(self, opening: str, done: Next) -> Reader:
        """One JSON object. Where markup says that it is a call, its name need not be known."""
        is_guess = self.markup.family in (Family.LLAMA, Family.GENERIC)
        return Call(self._knows if is_guess else bool, opening, done, self._prose)

    # Hermes and Qwen, and the form with tags that Qwen's coder models write.

    def _hermes(self) -> Reader:
        return Beginning(
            {"<function=": lambda: Enter("<function=", self._tagged)},
            lambda: self._call("<tool_call>", self._hermes_end),
        )

    def _hermes_end(self) -> Reader:
        return Gap({"</tool_call>": self._trimmed, "<tool_call>": self._hermes}, self._prose)

    def _tagged(self, taken: str) -> Reader:
        def parameters(name: str, _: str) -> Reader | None:
            name = name.strip()
            return Parameters(name, self.types.get(name, {}), self._hermes_end) if name else None

        return Header("<tool_call>" + taken, (">",), parameters, self._prose)

    # Llama 3

    def _bare_call(self) -> Reader:
        return self._call("", self._more_calls)

    def _more_calls(self) -> Reader:
        return Gap({";": lambda: self._call(";", self._more_calls), "<|python_tag|>": self._python_tag}, self._prose)

    def _python_tag(self) -> Reader:
        tag = "<|python_tag|>"

        def built_in(call: str, _: str) -> Reader | None:
            events = python_call(call)
            return None if events is None else Say(list(events), self._trimmed)

        return Beginning(
            {"{": lambda: self._call(tag, self._more_calls)}, lambda: Header(tag, (")",), built_in, self._prose)
        )

    # Any model that answers with nothing but JSON

    def _bare_calls(self) -> Reader:
        return Enter("[", lambda taken: self._call(taken, self._array_gap))

    def _array_gap(self) -> Reader:
        return Gap({",": lambda: self._call(",", self._array_gap), "]": self._trimmed}, self._prose)

    def _fenced(self) -> Reader:
        def fence(taken: str) -> Reader:
            def inside(language: str, end: str) -> Reader | None:
                if language.strip() not in ("", "json", "tool_call"):
                    return None
                opening = taken + language + end
                return Beginning(
                    {"[": lambda: Enter("[", lambda more: self._call(opening + more, self._fence_array))},
                    lambda: self._call(opening, self._fence_end),
                )

            return Header(taken, ("\n",), inside, self._prose)

        return Enter(_FENCE, fence)

    def _fence_array(self) -> Reader:
        return Gap({",": lambda: self._call(",", self._fence_array), "]": self._fence_end}, self._prose)

    def _fence_end(self) -> Reader:
        return Gap({_FENCE: self._trimmed}, self._prose)

    # Mistral

    def _mistral(self) -> Reader:
        def named(name: str, _: str) -> Reader | None:
            name = name.partition("[CALL_ID]")[0].strip()
            return Arguments(name, self._trimmed) if name else None

        return Beginning(
            {"[": lambda: Enter("[", lambda taken: self._call("[TOOL_CALLS]" + taken, self._array_gap))},
            lambda: Header("[TOOL_CALLS]", ("[ARGS]",), named, self._prose),
        )

    # DeepSeek

    def _deepseek_gap(self) -> Reader:
        return Gap({"<｜tool▁call▁begin｜>": self._deepseek, "<｜tool▁calls▁end｜>": self._trimmed}, self._prose)

    def _deepseek(self) -> Reader:
        opening = "<｜tool▁call▁begin｜>"

        def header(text: str, marker: str) -> Reader | None:
            name = text.strip()
            if name != "function":
                return Arguments(name, self._deepseek_end) if name else None
            return Header(opening + text + marker, ("\n",), old_name, self._prose)

        def old_name(text: str, _: str) -> Reader | None:
            name = text.strip()
            if not name:
                return None
            arguments = lambda: Arguments(name, self._deepseek_end)  # noqa: E731  # a continuation, as all of these
            return Gap({"```json": arguments}, arguments)

        return Header(opening, ("<｜tool▁sep｜>",), header, self._prose)

    def _deepseek_end(self) -> Reader:
        return Gap({_FENCE: self._deepseek_end, "<｜tool▁call▁end｜>": self._deepseek_gap}, self._deepseek_gap)

    # Harmony: every message has a header, and its channel says what it is.

    def _harmony(self) -> Reader:
        return Gap(
            dict.fromkeys(("<|channel|>", "<|start|>"), self._harmony_header)
            | dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), self._harmony),
            lambda: self._harmony_body(Content),
        )

    def _harmony_header(self) -> Reader:
        return Header("", ("<|message|>",), self._harmony_message, self._harmony)

    def _harmony_message(self, header: str, _: str) -> Reader:
        to = _FUNCTION_TO.search(header)
        if to is not None:
            return Arguments(to[1], self._harmony)
        return self._harmony_body(Reasoning if "analysis" in header else Content)

    def _harmony_body(self, kind: type[Content] | type[Reasoning]) -> Reader:
        if self.is_data and kind is Content:
            return self._data()
        ends: dict[str, Next] = dict.fromkeys(("<|end|>", "<|return|>", "<|call|>"), self._harmony)
        heads: dict[str, Next] = dict.fromkeys(("<|start|>", "<|channel|>"), self._harmony_header)
        return Prose(kind, ends | heads)

"""The families of output markers, and their recognition from a template or from the parser that a manifest names."""

import functools
import re
from dataclasses import dataclass
from enum import StrEnum

# A template is read for dozens of telltales, and is the same for all requests of a model. Clients may send some, too.
_TEMPLATES_CACHED_MAX = 32


class CallFamily(StrEnum):
    """Family of a model's tool calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    DEEPSEEK = "deepseek"
    HARMONY = "harmony"
    KIMI = "kimi"
    TAGGED = "tagged"  # every argument between tags
    SECTION = "section"  # JSON between two markers
    GEMMA = "gemma"
    PYTHON = "python"  # a list of Python calls between two markers
    GENERIC = "generic"
    NONE = "none"


class Form(StrEnum):
    """Form of one call within a family."""

    JSON = "json"  # name and arguments as one object
    NAMED = "named"  # a name, and the arguments as an object
    FENCED = "fenced"  # a name, and the arguments in a block of code


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Calls whose arguments stand between tags, as models write them. `telltales` are all in the templates."""

    telltales: tuple[str, ...]
    name: tuple[str, str]  # before and behind a function's name
    key: tuple[str, str]  # before and behind an argument's name
    key_end_of_json: str = ""  # behind the name of one whose value is not text, if that differs
    split: re.Pattern[str]  # between an argument's name and its value
    value_end: str
    end: str  # of a call
    section: tuple[str, str] = ("", "")  # around calls
    around_each: bool = False  # there is a section around every call
    markers: tuple[str, ...] = ()  # those of the tags that may be special tokens


_NAME_ATTRIBUTE = re.compile('"[^>]*>')
_AFTER_NAME = re.compile(">")


def _dsml(section: str) -> Tags:
    tag = "｜DSML｜"
    return Tags(
        telltales=(tag, section),
        name=(f'<{tag}invoke name="', '">\n'),
        key=(f'<{tag}parameter name="', '" string="true">'),
        key_end_of_json='" string="false">',
        split=_NAME_ATTRIBUTE,
        value_end=f"</{tag}parameter>\n",
        end=f"</{tag}invoke>",
        section=(f"<{tag}{section}>\n", f"\n</{tag}{section}>"),
        markers=(tag,),
    )


HERMES_TAGS = Tags(
    telltales=("<tool_call>", "<function="),
    name=("<function=", ">\n"),
    key=("<parameter=", ">\n"),
    split=_AFTER_NAME,
    value_end="\n</parameter>\n",
    end="</function>",
    section=("<tool_call>\n", "\n</tool_call>"),
    around_each=True,
)
_TAGS = (
    Tags(
        telltales=("<tool_call>", "<arg_key>"),
        name=("<tool_call>", "\n"),
        key=("<arg_key>", "</arg_key>\n<arg_value>"),
        split=re.compile(r"</arg_key>\s*<arg_value>"),
        value_end="</arg_value>\n",
        end="</tool_call>",
        markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    Tags(
        telltales=("<seed:tool_call>",),
        name=("<function=", ">\n"),
        key=("<parameter=", ">"),
        split=_AFTER_NAME,
        value_end="</parameter>\n",
        end="</function>",
        section=("<seed:tool_call>\n", "\n</seed:tool_call>"),
        around_each=True,
        markers=("<seed:tool_call>", "</seed:tool_call>"),
    ),
    Tags(
        telltales=("<minimax:tool_call>",),
        name=('<invoke name="', '">\n'),
        key=('<parameter name="', '">'),
        split=_NAME_ATTRIBUTE,
        value_end="</parameter>\n",
        end="</invoke>",
        section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        markers=("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    _dsml("function_calls"),
    _dsml("tool_calls"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSection:
    """Calls as JSON between two markers. `telltale` is in the templates."""

    telltale: str
    begin: str
    end: str
    array: bool = True  # else one object a line
    head: str = '{"name": "'  # of an object, up to the function's name
    arguments_key: str = "arguments"


_COHERE_HEAD = '{"tool_call_id": "0", "tool_name": "'
_SECTIONS = (
    CallSection(
        telltale="<|START_ACTION|>",
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
        head=_COHERE_HEAD,
        arguments_key="parameters",
    ),
    CallSection(telltale="<TOOLCALL>", begin="<TOOLCALL>", end="</TOOLCALL>"),
    CallSection(telltale="<tool_calls>[", begin="<tool_calls>", end="</tool_calls>"),
    CallSection(telltale="<tool_calls>", begin="<tool_calls>", end="</tool_calls>", array=False),
)
# Texts whose presence in a template shows the form; the last is what it is otherwise.
_FORMS = {
    CallFamily.MISTRAL: (("[ARGS]", Form.NAMED), ("", Form.JSON)),
    CallFamily.DEEPSEEK: (("```json", Form.FENCED), ("", Form.NAMED)),
}
# Markers whose presence in a template shows the family; the first that is there counts.
_TELLTALES = (
    (CallFamily.HARMONY, "<|channel|>"),
    (CallFamily.DEEPSEEK, "<｜tool▁calls▁begin｜>"),
    (CallFamily.KIMI, "<|tool_calls_section_begin|>"),
    (CallFamily.MISTRAL, "[TOOL_CALLS]"),
    (CallFamily.GEMMA, "<|tool_call>"),
    (CallFamily.PYTHON, "<|tool_call_start|>"),
)
_LATER_TELLTALES = (
    (CallFamily.HERMES, "<tool_call>"),
    (CallFamily.LLAMA, "<|python_tag|>"),
    (CallFamily.LLAMA, '"parameters"'),
)
_GEMMA_REASONING = ("<|channel>thought", "<channel|>")
# Pairs that enclose reasoning.
_REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>", "</thinking>"),
    _GEMMA_REASONING,
)
_MARKERS = {
    CallFamily.HARMONY: (
        "<|channel|>",
        "<|message|>",
        "<|start|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|constrain|>",
    ),
    CallFamily.DEEPSEEK: (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    CallFamily.KIMI: (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
    CallFamily.MISTRAL: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    CallFamily.GEMMA: ("<|tool_call>", "<tool_call|>", '<|"|>'),
    CallFamily.PYTHON: ("<|tool_call_start|>", "<|tool_call_end|>"),
    CallFamily.HERMES: ("<tool_call>", "</tool_call>"),
    CallFamily.LLAMA: ("<|python_tag|>",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSyntax:
    """Markers that a template's models write around their answers."""

    family: CallFamily = CallFamily.NONE
    reasoning: tuple[str, str] | None = None
    form: Form = Form.JSON
    tags: Tags | None = None  # set for TAGGED, and for the models of HERMES that write them
    section: CallSection | None = None  # set for SECTION

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must reach the parser although they may be special tokens."""
        own = _MARKERS.get(self.family, ())
        tags = self.tags.markers if self.tags is not None else ()
        section = (self.section.begin, self.section.end) if self.section is not None else ()
        reasoning = ("<|channel>", "<channel|>") if self.reasoning == _GEMMA_REASONING else self.reasoning or ()
        return tuple(dict.fromkeys((*own, *tags, *section, *reasoning)))


@functools.lru_cache(maxsize=_TEMPLATES_CACHED_MAX)
def syntax_of(template: str, *, has_tools: bool) -> OutputSyntax:
    """Return the markers of a chat template's models, from the template alone."""
    reasoning = next((pair for pair in _REASONING if all(marker in template for marker in pair)), None)
    family = next((family for family, telltale in _TELLTALES if telltale in template), CallFamily.NONE)
    if family is CallFamily.NONE:
        tags = next((tags for tags in _TAGS if all(telltale in template for telltale in tags.telltales)), None)
        if tags is not None:
            return OutputSyntax(family=CallFamily.TAGGED, reasoning=reasoning, tags=tags)
        section = next((section for section in _SECTIONS if section.telltale in template), None)
        if section is not None:
            return OutputSyntax(family=CallFamily.SECTION, reasoning=reasoning, section=section)
        family = next((family for family, telltale in _LATER_TELLTALES if telltale in template), CallFamily.NONE)
    if family is CallFamily.NONE and has_tools:
        family = CallFamily.GENERIC
    is_tagged = family is CallFamily.HERMES and all(telltale in template for telltale in HERMES_TAGS.telltales)
    form = next((form for text, form in _FORMS.get(family, ()) if text in template), Form.JSON)
    return OutputSyntax(family=family, reasoning=reasoning, form=form, tags=HERMES_TAGS if is_tagged else None)


# Text that shows a parser's markers as a template does, by the beginning of its name; the longest counts.
_OF_PARSERS = {
    "harmony": "<|channel|>",
    "gpt-oss": "<|channel|>",
    "gptoss": "<|channel|>",
    "hermes": "<tool_call>",
    "qwen3": "<think></think><tool_call>",
    "qwen3-coder": "<tool_call><function=",
    "qwen3.5": "<think></think><tool_call><function=",
    "deepseek": "<think></think><｜tool▁calls▁begin｜>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS][ARGS]",
    "ministral": "[THINK][/THINK][TOOL_CALLS][ARGS]",
    "kimi": "<think></think><|tool_calls_section_begin|>",
    "glm": "<think></think><tool_call><arg_key>",
    "lfm2": "<|tool_call_start|>",
    "lfm2-thinking": "<think></think><|tool_call_start|>",
    "gemma4": "<|channel>thought<channel|><|tool_call>",
    "minimax": "<think></think><minimax:tool_call>",
    "nemotron": "<think></think><tool_call><function=",
}
_PLAIN_PARSER = "passthrough"


def syntax_of_parser(parser: str) -> OutputSyntax | None:
    """Return the markers of a manifest's parser; None: unknown name, so the template decides."""
    name = parser.lower()
    if name == _PLAIN_PARSER:
        return OutputSyntax()
    known = [prefix for prefix in _OF_PARSERS if name.startswith(prefix)]
    return syntax_of(_OF_PARSERS[max(known, key=len)], has_tools=False) if known else None

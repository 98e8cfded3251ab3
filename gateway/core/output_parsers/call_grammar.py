"""The grammar of an answer that is nothing but tool calls, in the form of the model's family. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from common.gbnf import literal, text_until
from gateway.core.output_parsers.syntax import CallFamily, Form, OutputSyntax, Tags
from gateway.core.request.constraint import Constraint

_DEFINITIONS = ("$defs", "definitions")


# Text before and behind the arguments of a call of the function NAME.
_CALLS = {
    (CallFamily.HERMES, Form.JSON): ('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
    (CallFamily.LLAMA, Form.JSON): ('{"name": "NAME", "parameters": ', "}"),
    (CallFamily.MISTRAL, Form.JSON): ('{"name": "NAME", "arguments": ', "}"),
    (CallFamily.MISTRAL, Form.NAMED): ("[TOOL_CALLS]NAME[ARGS]", ""),
    (CallFamily.DEEPSEEK, Form.FENCED): (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        "\n```<｜tool▁call▁end｜>",
    ),
    (CallFamily.DEEPSEEK, Form.NAMED): ("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    # The number is meant to count the calls of the whole conversation; no reader uses it.
    (CallFamily.KIMI, Form.JSON): (
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    (CallFamily.HARMONY, Form.JSON): ("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", ""),
    # The two read JSON, too.
    (CallFamily.GEMMA, Form.JSON): ("<|tool_call>call:NAME", "<tool_call|>"),
    (CallFamily.PYTHON, Form.JSON): ('{"name": "NAME", "arguments": ', "}"),
    (CallFamily.GENERIC, Form.JSON): ('{"name": "NAME", "arguments": ', "}"),
}
# Text before all calls, between two and behind all.
_FRAMES = {
    (CallFamily.HERMES, Form.JSON): ("", "\n", ""),
    (CallFamily.LLAMA, Form.JSON): ("", "; ", ""),
    (CallFamily.MISTRAL, Form.JSON): ("[TOOL_CALLS][", ", ", "]"),
    (CallFamily.DEEPSEEK, Form.FENCED): ("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
    (CallFamily.DEEPSEEK, Form.NAMED): ("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
    (CallFamily.PYTHON, Form.JSON): ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    (CallFamily.KIMI, Form.JSON): ("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
}


def call_grammar(syntax: OutputSyntax, functions: Sequence[Mapping[str, object]], *, several: bool) -> Constraint:
    """Build the grammar of one call of one of these functions, or with `several` of one or more."""
    several = several and syntax.family is not CallFamily.HARMONY  # whose turns end with a call
    grammar = _CallGrammar(syntax)
    calls = [grammar.call(number, function) for number, function in enumerate(functions)]
    begin, separator, end = map(literal, _frame(syntax, several=several))
    more = f" ({separator} call)*" if several else ""
    lines = [f"root ::= {begin} call{more} {end}", "call ::= " + " | ".join(calls), *grammar.lines]
    return Constraint(grammar="\n".join(lines) + "\n", schemas=grammar.schemas, lenient=tuple(grammar.lenient))


def _frame(syntax: OutputSyntax, *, several: bool) -> tuple[str, str, str]:
    if syntax.tags is not None:
        begin, end = ("", "") if syntax.tags.around_each else syntax.tags.section
        return begin, "\n", end
    if syntax.section is not None:
        begin, separator, end = ("[", ", ", "]") if syntax.section.array else ("\n", "\n", "\n")
        return syntax.section.begin + begin, separator, end + syntax.section.end
    if syntax.family is CallFamily.GENERIC and several:
        return "[", ", ", "]"
    return _FRAMES.get((syntax.family, syntax.form), ("", "", ""))


@dataclass(slots=True)
class _CallGrammar:
    """Gathers the rules that calls refer to."""

    syntax: OutputSyntax
    lines: list[str] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)
    lenient: list[str] = field(default_factory=list)

    def call(self, number: int, function: Mapping[str, object]) -> str:
        """Add the alternative of one function."""
        name = str(function["name"])
        parameters = function.get("parameters")
        schema = dict(parameters) if isinstance(parameters, Mapping) else {}
        if not schema.get("properties") and not schema.keys() - {"type", "properties", "required", "description"}:
            schema = {"type": "object", "properties": {}, "additionalProperties": False}
        schema.setdefault("type", "object")
        is_strict = function.get("strict") is True
        if self.syntax.tags is not None:
            return self._tagged(self.syntax.tags, number, name, schema, is_strict=is_strict)
        rule = self._json(f"arguments-{number}", schema, is_strict=is_strict)
        before, after = self._around(name)
        return f"{literal(before)} {rule} {literal(after)}"

    def _around(self, name: str) -> tuple[str, str]:
        """Return the text before and behind the arguments of a call."""
        if (section := self.syntax.section) is not None:
            return f'{section.head}{name}", "{section.arguments_key}": ', "}"
        before, behind = _CALLS[self.syntax.family, self.syntax.form]
        return before.replace("NAME", name), behind

    def _json(self, rule: str, schema: Mapping[str, object], *, is_strict: bool) -> str:
        self.schemas[rule] = orjson.dumps(schema).decode()
        if not is_strict:
            self.lenient.append(rule)
        return rule

    def _tagged(self, tags: Tags, number: int, name: str, schema: Mapping[str, object], *, is_strict: bool) -> str:
        """Write the form with tags. Texts stand as they are, all other values as JSON."""
        properties, required = schema.get("properties"), schema.get("required")
        definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
        begin, end = tags.section if tags.around_each else ("", "")
        parts = [literal(begin + tags.name[0] + name + tags.name[1])]
        declared = properties.items() if isinstance(properties, Mapping) else ()
        for place, (key, value) in enumerate(declared):
            if _is_text(value):
                part = f"{literal(tags.key[0] + key + tags.key[1])} {self._text(tags.value_end)}"
            else:
                opening = literal(tags.key[0] + key + (tags.key_end_of_json or tags.key[1]))
                nested = {**value, **definitions} if isinstance(value, Mapping) else {}
                rule = self._json(f"arguments-{number}-{place}", nested, is_strict=is_strict)
                part = f"{opening} {rule} {literal(tags.value_end)}"
            parts.append(part if isinstance(required, list) and key in required else f"({part})?")
        parts.append(literal(tags.end + end))
        return " ".join(parts)

    def _text(self, end: str) -> str:
        if not any(line.startswith("text-0 ") for line in self.lines):
            self.lines += text_until("text", end)
        return "text-0"


def _is_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema


def functions_of(tools: Iterable[Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
    """Return functions by name."""
    found: dict[str, Mapping[str, object]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[str(function["name"])] = function
    return found

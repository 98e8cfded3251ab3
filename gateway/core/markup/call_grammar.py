"""The grammar of an answer that is nothing but tool calls, in the form of the model's family. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from common.gbnf import literal, text_until
from gateway.core.constraint import Constraint
from gateway.core.markup.families import Family, Form, Markup

_PARAMETER_END = "\n</parameter>\n"
_DEFINITIONS = ("$defs", "definitions")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What stands around calls, and between them."""

    begin: str = '""'
    separator: str = '""'
    end: str = '""'


def call_grammar(markup: Markup, functions: Sequence[Mapping[str, object]], *, several: bool) -> Constraint:
    """One call of one of these functions, or with `several` one or more."""
    several = several and markup.family is not Family.HARMONY  # whose turns end with a call
    grammar = _CallGrammar(markup)
    calls = [grammar.call(number, function) for number, function in enumerate(functions)]
    frame = _frame(markup, several=several)
    more = f" ({frame.separator} call)*" if several else ""
    lines = [f"root ::= {frame.begin} call{more} {frame.end}", "call ::= " + " | ".join(calls), *grammar.lines]
    return Constraint(
        grammar="\n".join(lines) + "\n", schemas=grammar.schemas, lenient=tuple(name for name in grammar.lenient)
    )


def _frame(markup: Markup, *, several: bool) -> _Frame:
    match markup.family:
        case Family.HERMES:
            return _Frame(separator=literal("\n"))
        case Family.LLAMA:
            return _Frame(separator=literal("; "))
        case Family.MISTRAL if markup.form is Form.JSON:
            begin = f'{literal("[TOOL_CALLS]")} " "? "["'
            return _Frame(begin=begin, separator=literal(", "), end=literal("]"))
        case Family.DEEPSEEK:
            separator = "\n" if markup.form is Form.FENCED else ""
            begin, end = literal("<｜tool▁calls▁begin｜>"), literal("<｜tool▁calls▁end｜>")
            return _Frame(begin=begin, separator=literal(separator), end=end)
        case Family.GENERIC if several:
            return _Frame(begin=literal("["), separator=literal(", "), end=literal("]"))
        case _:
            return _Frame()


@dataclass(slots=True)
class _CallGrammar:
    """Gathers the rules that calls refer to."""

    markup: Markup
    lines: list[str] = field(default_factory=list)
    schemas: dict[str, str] = field(default_factory=dict)
    lenient: list[str] = field(default_factory=list)

    def call(self, number: int, function: Mapping[str, object]) -> str:
        """The alternative of one function."""
        name = str(function["name"])
        parameters = function.get("parameters")
        schema = dict(parameters) if isinstance(parameters, Mapping) else {}
        if not schema.get("properties") and not schema.keys() - {"type", "properties", "required", "description"}:
            schema = {"type": "object", "properties": {}, "additionalProperties": False}
        schema.setdefault("type", "object")
        is_strict = function.get("strict") is True
        if self.markup.family is Family.HERMES and self.markup.form is Form.TAGS:
            return self._tagged(number, name, schema, is_strict=is_strict)
        rule = self._json(f"arguments-{number}", schema, is_strict=is_strict)
        before, after = self._around(name)
        return f"{literal(before)} {rule} {literal(after)}"

    def _around(self, name: str) -> tuple[str, str]:
        """What stands before and behind the arguments of a call."""
        match self.markup.family, self.markup.form:
            case Family.HERMES, _:
                return f'<tool_call>\n{{"name": "{name}", "arguments": ', "}\n</tool_call>"
            case Family.LLAMA, _:
                return f'{{"name": "{name}", "parameters": ', "}"
            case Family.MISTRAL, Form.NAMED:
                return f"[TOOL_CALLS]{name}[ARGS]", ""
            case Family.DEEPSEEK, Form.FENCED:
                opening = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
                return opening, "\n```<｜tool▁call▁end｜>"
            case Family.DEEPSEEK, _:
                return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
            case Family.HARMONY, _:
                return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", ""
            case _:
                return f'{{"name": "{name}", "arguments": ', "}"

    def _json(self, rule: str, schema: Mapping[str, object], *, is_strict: bool) -> str:
        self.schemas[rule] = orjson.dumps(schema).decode()
        if not is_strict:
            self.lenient.append(rule)
        return rule

    def _tagged(self, number: int, name: str, schema: Mapping[str, object], *, is_strict: bool) -> str:
        """The form of tags. Texts stand as they are, all other values as JSON."""
        properties, required = schema.get("properties"), schema.get("required")
        definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
        parts = [literal(f"<tool_call>\n<function={name}>\n")]
        declared = properties.items() if isinstance(properties, Mapping) else ()
        for place, (key, value) in enumerate(declared):
            opening = literal(f"<parameter={key}>\n")
            if _is_text(value):
                part = f"{opening} {self._text()}"
            else:
                nested = {**value, **definitions} if isinstance(value, Mapping) else {}
                rule = self._json(f"arguments-{number}-{place}", nested, is_strict=is_strict)
                part = f"{opening} {rule} {literal(_PARAMETER_END)}"
            parts.append(part if isinstance(required, list) and key in required else f"({part})?")
        parts.append(literal("</function>\n</tool_call>"))
        return " ".join(parts)

    def _text(self) -> str:
        if not any(line.startswith("text-0 ") for line in self.lines):
            self.lines += text_until("text", _PARAMETER_END)
        return "text-0"


def _is_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" not in schema


def functions_of(tools: Iterable[Mapping[str, object]]) -> dict[str, Mapping[str, object]]:
    """Functions by name."""
    found: dict[str, Mapping[str, object]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[str(function["name"])] = function
    return found

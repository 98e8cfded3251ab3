"""Objects of a JSON schema as grammar texts, and whether two schemas can be distinguished. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.grammar.json_grammar_parts import quoted
from runner.core.grammar.json_schema_merge import Schema, refusal, types_of


@dataclass(frozen=True, slots=True)
class DeclaredProperty:
    """A declared property: its name, the rule of its value, and whether it has to be there."""

    name: str
    rule: str
    required: bool


def literal(value: Any) -> str:
    """Return a JSON value as a literal of the grammar.

    Raises:
        InvalidRequest: it has characters that UTF-8 cannot carry.
    """
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise refusal("a text in it is no valid Unicode") from None
    return quoted(text)


def object_text(members: Sequence[DeclaredProperty], extra: str | None, add_rule: Callable[[str], str]) -> str:
    """Return an object whose members come in this order; `extra` is the rule of members that are not declared."""
    # From the end on: what may follow once a member was written, and while none was.
    tail = add_rule(f'("," ws {extra})*') if extra else add_rule('""')
    after, fresh = tail, (add_rule(f'({extra} ("," ws {extra})*)?') if extra else tail)
    for member in reversed(members):
        pair = f'{literal(member.name)} ":" ws {member.rule}'
        next_after = f'"," ws {pair} {after}'
        next_fresh = f"{pair} {after}"
        if not member.required:
            next_after = f"({next_after}) | {after}"
            next_fresh = f"({next_fresh}) | {fresh}"
        after, fresh = add_rule(next_after), add_rule(next_fresh)
    return f'"{{" ws {fresh} ws "}}"'


def other_name(names: Sequence[str], add_rule: Callable[[str], str]) -> str:
    """Return a rule for other members' names, without escapes, so that none is a known name in disguise."""
    tree: dict[str, Any] = {}
    for name in names:
        branch = tree
        for character in name:
            branch = branch.setdefault(character, {})
        branch[""] = {}
    return f'"\\"" {_not_in(tree, add_rule, at_start=True)} "\\""'


def _not_in(tree: Mapping[str, Any], add_rule: Callable[[str], str], *, at_start: bool = False) -> str:
    """Return the rule of texts that leave the tree of names somewhere, or end where no name does."""
    following = [character for character in tree if character]
    excluded = "".join(f"\\U{ord(character):08X}" for character in following)
    parts = [f'[^"\\\\\\x00-\\x1F\\x7F{excluded}] plain*']
    parts += [
        f"{quoted(character)} {_not_in(tree[character], add_rule)}"
        for character in following
        if character >= " " and character not in '"\\\x7f'
    ]
    if "" not in tree and not at_start:
        parts.append('""')
    return add_rule(" | ".join(parts))


def distinct(one: Schema, other: Schema) -> bool:
    """Return True if no value made for one schema is valid for the other, as far as that is plain to see."""
    first, second = _kinds(one), _kinds(other)
    if first is not None and second is not None and not first & second:
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(equal(value, another) for value in values for another in others)
    return _lacks(one, other) and _lacks(other, one)


def _lacks(one: Schema, other: Schema) -> bool:
    """Return True if objects made for `one` lack something that `other` requires."""
    own, theirs = one.get("properties", {}), other.get("properties", {})
    required = other.get("required", [])
    if not isinstance(own, Mapping) or not isinstance(theirs, Mapping) or not isinstance(required, list):
        return False
    closed = not one.get("additionalProperties", not own)
    for name in required:
        if not isinstance(name, str):
            return False
        if name not in own:
            if closed:
                return True
        elif (
            isinstance(own[name], Mapping)
            and isinstance(theirs.get(name), Mapping)
            and distinct(own[name], theirs[name])
        ):
            return True
    return False


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON: true is not 1, but 1.0 is."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _kinds(schema: Schema) -> frozenset[str] | None:
    kinds = types_of(schema)
    if kinds is None:
        if "properties" in schema:
            return frozenset({"object"})
        values = _values(schema)
        return frozenset(kind_of(value) for value in values) if values is not None else None
    return (kinds - {"integer"}) | {"number"} if "integer" in kinds else kinds


def kind_of(value: Any) -> str:
    """Return the type of a JSON value; every number is a "number"."""
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"

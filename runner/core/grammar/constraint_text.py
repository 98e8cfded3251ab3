"""Constraint of a request as text, and the grammar for llguidance that it becomes. Pure."""

import json
from dataclasses import dataclass

from common.errors import InvalidRequest
from runner.core.grammar.free_text import after_free_text
from runner.core.grammar.gbnf import LarkText
from runner.core.grammar.json_merge import TYPES, refusal
from runner.core.grammar.json_schema import guided_schema
from runner.core.grammar.token_tree import TokenTree, grammar_error

LARK_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintText:
    """Constraint of a request as received; equal ones are read once."""

    kind: str
    text: str
    free_text: tuple[str, str] | None = None  # opening and closing
    schemas: tuple[tuple[str, str], ...] = ()
    lenient: frozenset[str] = frozenset()
    token_ids: frozenset[int] = frozenset()
    lark: str = ""  # all but `kind` and `token_ids`, converted; empty: it is not


def lark_text(key: ConstraintText, tree: TokenTree) -> str:
    """Write a constraint as one grammar for llguidance.

    Raises:
        InvalidRequest: it cannot be read or is too large; names the field.
    """
    if key.lark:
        return key.lark
    lark = LarkText()
    if key.kind == "json_schema":
        root = lark.rule(f"%json {guided_schema(key.text)}")
    else:
        parts = {name: lark.rule(_schema(text, tree, lenient=name in key.lenient)) for name, text in key.schemas}
        root = lark.gbnf(key.text, param=key.kind, parts=parts)
    if key.free_text is not None:
        root = after_free_text(lark, root, opening=key.free_text[0], closing=key.free_text[1])
    return lark.whole(root)


def _schema(text: str, tree: TokenTree, *, lenient: bool) -> str:
    try:
        body = f"%json {guided_schema(text)}"
        if error := grammar_error(f"start: {body}", tree):
            raise refusal(error)
    except InvalidRequest:
        if not lenient:
            raise
        body = f"%json {guided_schema(_type_alone(text))}"
    return body


def _type_alone(text: str) -> str:
    """Return a schema that says no more than the type of another one.

    Raises:
        InvalidRequest: it is no schema at all.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest("json_schema cannot be used: it is not JSON", param="json_schema") from None
    kind = schema.get("type") if isinstance(schema, dict) else None
    return json.dumps({"type": kind} if isinstance(kind, str) and kind in TYPES else {})

"""Constraint that a runner applies to its output."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeText:
    """Text before what is constrained; an empty `opening` was said by the prompt."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A JSON schema, or a grammar with rules of which `schemas` says the JSON by name.

    Of those in `lenient`, one that no grammar can hold counts as its type alone.
    """

    json_schema: str = ""
    grammar: str = ""
    schemas: Mapping[str, str] = field(default_factory=dict)
    lenient: tuple[str, ...] = ()
    free_text: FreeText | None = None
    lark: str = ""  # all of it, as a runner compiles it; empty: the runner converts it
    is_slow: bool = False  # to compile

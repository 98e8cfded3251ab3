"""Texts that name models, for callers who may not know of all of them. Pure."""

import re
from collections.abc import Callable
from typing import Any

ANOTHER = "another model"
OTHERS = "other models"
# The scheduler writes names with their tags; a word without one is a word.
_WORD = re.compile(r"[\w./@+-]+:[\w./:@+-]*\w")
_SEVERAL = re.compile(rf"{ANOTHER}(?:, {ANOTHER})+")


def without_hidden(text: str, *, is_model: Callable[[str], bool], may_use: Callable[[str], bool]) -> str:
    """Replace the models that the caller may not use by other words."""

    def shown(word: re.Match[str]) -> str:
        return ANOTHER if is_model(word[0]) and not may_use(word[0]) else word[0]

    return _SEVERAL.sub(OTHERS, _WORD.sub(shown, text))


def texts_shown(value: Any, shown: Callable[[str], str]) -> Any:
    """Return JSON with every text replaced by its shown form; names of fields stay."""
    match value:
        case str():
            return shown(value)
        case list():
            return [texts_shown(item, shown) for item in value]
        case dict():
            return {name: texts_shown(item, shown) for name, item in value.items()}
        case _:
            return value

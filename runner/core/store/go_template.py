"""Check of Go templates: actions close, and blocks end. A template is shown and never run. Pure."""

import re

from common.errors import InvalidRequest

_ACTION = re.compile(r"\{\{-?\s*(/\*.*?\*/|.*?)\s*-?\}\}", re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|`[^`]*`')
_OPENING = frozenset({"if", "range", "with", "define", "block"})
BLOCKS_DEEP_MAX = 100


def check_template(text: str) -> None:
    """Check the outline of a template.

    Raises:
        InvalidRequest: an action or a block does not end, or one ends that never began.
    """
    blanked = _STRING.sub(
        lambda found: '"' + "_" * (len(found[0]) - 2) + '"' if _is_inside(text, found.start()) else found[0], text
    )
    open_blocks: list[str] = []
    for action in _ACTION.finditer(blanked):
        word = action[1].split(maxsplit=1)[0] if action[1] else ""
        if word in _OPENING:
            open_blocks.append(word)
        elif word == "else" and not open_blocks:
            raise _bad("else without a block that it belongs to")
        elif word == "end":
            if not open_blocks:
                raise _bad("end without a block that it ends")
            open_blocks.pop()
        elif not word:
            raise _bad("an action without words")
        if len(open_blocks) > BLOCKS_DEEP_MAX:
            raise _bad(f"more than {BLOCKS_DEEP_MAX} blocks in each other")
    rest = _ACTION.sub("", blanked)
    if "{{" in rest:
        raise _bad("an action does not end")
    if open_blocks:
        raise _bad(f"{open_blocks[-1]} without an end")


def _is_inside(text: str, position: int) -> bool:
    """Return True if a position lies in an action: after the last opening there is no closing."""
    return text.rfind("{{", 0, position) > text.rfind("}}", 0, position)


def _bad(text: str) -> InvalidRequest:
    return InvalidRequest(f"template error: {text}", param="template")

"""Whether a text can be a Go template: its actions are closed and its blocks end. They are shown, not run. Pure."""

import re

# Strings of an action may hold what would end it.
_STRING = r'"(?:\\.|[^"\\\n])*"|`[^`]*`' + r"|'(?:\\.|[^'\\\n])*'|/\*.*?\*/"
_ACTION = re.compile(r"\{\{-?\s*(?P<body>(?:" + _STRING + r"|(?!\}\}).)*?)\s*-?\}\}", re.DOTALL)
_BLOCKS = frozenset({"if", "range", "with", "define", "block"})
_WORD = re.compile(r"[A-Za-z]+\b")


def go_template_fault(text: str) -> str | None:
    """What is wrong with a template; None: nothing that can be seen without running it."""
    open_blocks: list[str] = []
    position = 0
    for found in _ACTION.finditer(text):
        if "{{" in text[position : found.start()] or not found["body"]:
            return "an action is empty or not closed"
        position = found.end()
        word = _WORD.match(found["body"])
        name = word.group() if word is not None else ""
        if name in ("else", "end") and not open_blocks:
            return f"there is an {name} without a block"
        if name in _BLOCKS:
            open_blocks.append(name)
        elif name == "end":
            open_blocks.pop()
    if "{{" in text[position:]:
        return "an action is not closed"
    return f"a block of {open_blocks[-1]} is not ended" if open_blocks else None

"""Capabilities that a chat template gives its model, in the file or in a manifest. Pure."""

import re

# No template language but Jinja has statements in these brackets, and its loops and conditions are all statements.
_JINJA_STATEMENT = re.compile(r"\{%-?\s*\w")
# What a template says if it renders tools, and if it knows reasoning, by the name of the capability.
_SIGNS = {"tools": ("tools",), "thinking": ("<think>", "enable_thinking")}
GRANTED_BY_TEMPLATES = frozenset(_SIGNS)
# Actions of a Go template. Strings in one may hold the text that would end it.
_STRING = r'"(?:\\.|[^"\\\n])*"|`[^`]*`' + r"|'(?:\\.|[^'\\\n])*'|/\*.*?\*/"
# Atomic: a string is never tried again as its letters, of which there are too many ways.
_ACTION = re.compile(r"\{\{-?\s*(?P<body>(?>" + _STRING + r"|(?!\}\}).)*?)\s*-?\}\}", re.DOTALL)
_BLOCKS = frozenset({"if", "range", "with", "define", "block"})
_WORD = re.compile(r"[A-Za-z]+\b")
BLOCKS_DEEP_MAX = 100


def is_jinja(template: str) -> bool:
    """Return True for a manifest's template that can be run here; one in Go's language is only shown."""
    return _JINJA_STATEMENT.search(template) is not None


def granted_capabilities(template: str) -> tuple[str, ...]:
    """Name what a model can do with a template."""
    return tuple(name for name, signs in _SIGNS.items() if any(sign in template for sign in signs))


def go_template_fault(text: str) -> str | None:
    """Describe the first fault of a Go template; None if there is none that shows without running it.

    Go templates are shown and never run: this checks that actions are closed and blocks end.
    """
    open_blocks: list[str] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        found = _ACTION.match(text, start)
        if found is None:
            return "an action is not closed"
        if not found["body"]:
            return "an action is empty or not closed"
        position = found.end()
        word = _WORD.match(found["body"])
        name = word.group() if word is not None else ""
        if name in ("else", "end") and not open_blocks:
            return f"there is an {name} without a block"
        if name in _BLOCKS:
            open_blocks.append(name)
            if len(open_blocks) > BLOCKS_DEEP_MAX:
                return f"more than {BLOCKS_DEEP_MAX} blocks in each other"
        elif name == "end":
            open_blocks.pop()
    return f"a block of {open_blocks[-1]} is not ended" if open_blocks else None

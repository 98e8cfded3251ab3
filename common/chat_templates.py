"""Capabilities that a chat template gives its model, in the file or in a manifest. Pure."""

import re

# No template language but Jinja has statements in these brackets, and its loops and conditions are all statements.
_JINJA_STATEMENT = re.compile(r"\{%-?\s*\w")
# What a template says if it renders tools, and if it knows reasoning, by the name of the capability.
_SIGNS = {"tools": ("tools",), "thinking": ("<think>", "enable_thinking")}
GRANTED_BY_TEMPLATES = frozenset(_SIGNS)


def is_jinja(template: str) -> bool:
    """Return True for a manifest's template that can be run here; one in Go's language is only shown."""
    return _JINJA_STATEMENT.search(template) is not None


def granted_capabilities(template: str) -> tuple[str, ...]:
    """Name what a model can do with a template."""
    return tuple(name for name, signs in _SIGNS.items() if any(sign in template for sign in signs))

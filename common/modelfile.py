"""A Modelfile: the recipe of a model, as text and as values. Pure.

Instructions are FROM, ADAPTER, TEMPLATE, SYSTEM, PARAMETER, MESSAGE, LICENSE, RENDERER and PARSER; a value stands alone
on its line, or between double or triple quotes over several.
"""

from collections.abc import Iterator
from dataclasses import dataclass

TRIPLE = '"""'


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """Instructions of a Modelfile. None: the instruction is missing."""

    sources: tuple[str, ...] = ()  # of FROM: names of models, or paths
    adapters: tuple[str, ...] = ()
    template: str | None = None
    system: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()  # name and value as written; some names come several times
    messages: tuple[tuple[str, str], ...] = ()  # role and content
    licenses: tuple[str, ...] = ()
    renderer: str | None = None
    parser: str | None = None


def unquoted(text: str) -> str | None:
    """Return a value without its quotes; None: the closing ones are missing so far."""
    for quote in (TRIPLE, '"'):
        if text.startswith(quote):
            closed = len(text) >= 2 * len(quote) and text.endswith(quote)
            return text[len(quote) : -len(quote)] if closed else None
    return text


def quoted(value: str) -> str:
    """Return a value as a Modelfile has it: bare where that means the same."""
    if value and "\n" not in value and value == value.strip() and not value.startswith('"'):
        return value
    return f"{TRIPLE}{value}{TRIPLE}"


def modelfile_text(modelfile: Modelfile) -> str:
    """Return the text of a Modelfile."""
    return "".join(line + "\n" for line in _lines(modelfile))


def _lines(modelfile: Modelfile) -> Iterator[str]:
    for source in modelfile.sources:
        yield f"FROM {quoted(source)}"
    for adapter in modelfile.adapters:
        yield f"ADAPTER {quoted(adapter)}"
    texts = {
        "TEMPLATE": modelfile.template,
        "SYSTEM": modelfile.system,
        "RENDERER": modelfile.renderer,
        "PARSER": modelfile.parser,
    }
    for name, text in texts.items():
        if text is not None:
            yield f"{name} {quoted(text)}"
    for name, value in modelfile.parameters:
        yield f"PARAMETER {name} {quoted(value)}"
    for role, content in modelfile.messages:
        yield f"MESSAGE {role} {quoted(content)}"
    for text in modelfile.licenses:
        yield f"LICENSE {quoted(text)}"

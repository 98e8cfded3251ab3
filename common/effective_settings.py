"""Settings in effect: each setting of a process with its value and its source. Secrets are not shown."""

import ast
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from textwrap import dedent

from common.ollama_environment import EQUIVALENTS
from common.ollama_environment import PREFIX as OLLAMA
from common.settings import PREFIX, PunaSettings

# The end of a name whose value is secret.
_SECRET = ("_key", "_token", "_password", "_secret")
_NOT_SECRET = frozenset({"tls_key"})  # a path
_CREDENTIALS = re.compile(r"(?<=://)[^/?#]*@")
HIDDEN = "(hidden)"


class Source(StrEnum):
    """Source of a value."""

    DEFAULT = "default"
    ENVIRONMENT = "environment"
    OLLAMA = "ollama"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """One line. `variable` is the name that set it, empty for a default."""

    name: str
    value: str
    source: Source
    variable: str
    text: str


def effective_settings(settings: PunaSettings) -> Iterator[EffectiveSetting]:
    """Yield the settings by name; they were read from the environment of this process."""
    taken_over, texts = settings.taken_over(), setting_texts(type(settings))
    for field in sorted(type(settings).model_fields):
        name = PREFIX + field.upper()
        if name in os.environ:
            source, variable = Source.ENVIRONMENT, name
        elif name in taken_over:
            source, variable = Source.OLLAMA, OLLAMA + EQUIVALENTS[field.upper()][0]
        else:
            source, variable = Source.DEFAULT, ""
        yield EffectiveSetting(
            name=name,
            value=_shown(field, getattr(settings, field)),
            source=source,
            variable=variable,
            text=texts.get(field, ""),
        )


@cache
def setting_texts(settings_type: type[PunaSettings]) -> Mapping[str, str]:
    """Return the docstring of each field on one line, read from the source.

    pydantic would read them at each start (`use_attribute_docstrings`), for a tenth of the time that a start takes.
    """
    texts: dict[str, str] = {}
    for base in reversed(settings_type.__mro__):
        if not issubclass(base, PunaSettings):
            continue
        (declared,) = ast.parse(dedent(inspect.getsource(base))).body
        assert isinstance(declared, ast.ClassDef)
        for pair in pairwise(declared.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=field)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[field] = " ".join(text.split())
    return texts


def _shown(field: str, value: object) -> str:
    if value is None or value == "":
        return ""
    if field.endswith(_SECRET) and field not in _NOT_SECRET:
        return HIDDEN
    if isinstance(value, bool):
        return "1" if value else "0"
    return without_credentials(str(value))


def without_credentials(url: str) -> str:
    """Return a URL as it may be shown."""
    return _CREDENTIALS.sub(f"{HIDDEN}@", url)

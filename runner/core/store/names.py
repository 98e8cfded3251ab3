"""Names of models in the store: [host/][namespace/]model[:tag]. Pure.

Paths are made of checked parts alone, so that no name leads out of the store. Source: the grammar of Ollama's names.
"""

import re
from dataclasses import dataclass
from typing import Self

from common.errors import InvalidRequest
from common.model_names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG, NAMESPACE, PART

NAME_CHARACTERS_MAX = 350 + 3 * 80 + 3  # four parts and what stands between them

_PATTERNS = {
    "host": re.compile(r"(?=.{1,350}\Z)[A-Za-z0-9_][A-Za-z0-9_.-]*(:[0-9]{1,5})?"),
    "namespace": NAMESPACE,
    "model": PART,
    "tag": PART,
}


@dataclass(frozen=True, slots=True, order=True)
class StoreName:
    """A complete name. Two that differ only in case name the same model; `key` is what they have in common."""

    host: str
    namespace: str
    model: str
    tag: str

    def __post_init__(self) -> None:
        """Check every part.

        Raises:
            InvalidRequest: a part cannot be part of a path, or is too long.
        """
        for part, pattern in _PATTERNS.items():
            text = getattr(self, part)
            if not pattern.fullmatch(text):
                raise InvalidRequest(f"invalid model name: {text[:80]!r} is no {part}", param="model")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name as people write it; what is left out has its default.

        Raises:
            InvalidRequest: it is none.
        """
        if not 0 < len(text) <= NAME_CHARACTERS_MAX:
            raise InvalidRequest(f"invalid model name: {text[:80]!r}", param="model")
        path, tag = text, DEFAULT_TAG
        before, colon, after = text.rpartition(":")
        if colon and "/" not in after:  # else it is the port of the host
            path, tag = before, after
        host, namespace, model = DEFAULT_HOST, DEFAULT_NAMESPACE, path
        match path.split("/"):
            case [model]:
                pass
            case [namespace, model]:
                pass
            case [host, namespace, model]:
                pass
            case _:
                raise InvalidRequest(f"invalid model name: {text[:80]!r} has too many parts", param="model")
        return cls(host, namespace, model, tag)

    @property
    def key(self) -> "StoreName":
        """The same for all ways to write the name's letters."""
        return StoreName(self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower())

    def short(self) -> str:
        """As people write it: defaults are left out, the tag is always there."""
        host, namespace = self.host.lower(), self.namespace.lower()
        if host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"
        if namespace != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"

    def full(self) -> str:
        """With every part."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    def parts(self) -> tuple[str, str, str, str]:
        """Return the folders and the file below manifests/."""
        return self.host, self.namespace, self.model, self.tag

"""Model names as people write them: `[host/][namespace/]model[:tag]`."""

import functools
import re
from dataclasses import dataclass

from common.errors import ModelNotFound

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
# Every request asks for its model's name several times. Only names are kept, and those are short.
_NAMES_CACHED_MAX = 1024

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name. Stored with its case, compared without it: see `key`."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def key(self) -> str:
        """The same string for every spelling of the name."""
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}".lower()

    @property
    def short(self) -> str:
        """The shortest spelling that still means this name, with its tag."""
        if self.host.lower() != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{self.model}:{self.tag}"
        return f"{self.model}:{self.tag}"


def model_not_found(name: str) -> ModelNotFound:
    """The error for a name that no node has, with the text that clients compare."""
    return ModelNotFound(f"model '{name}' not found", param="model")


@functools.lru_cache(maxsize=_NAMES_CACHED_MAX)
def parse_model_name(text: str) -> ModelName:
    """Split a name and fill in the defaults.

    Raises:
        ModelNotFound: the text is no name, so no model can have it; tell the client.
    """
    parts = text.split("/")
    last, colon, tag = parts[-1].partition(":")
    host = parts[-3] if len(parts) == 3 else DEFAULT_HOST
    namespace = parts[-2] if len(parts) >= 2 else DEFAULT_NAMESPACE
    name = ModelName(host, namespace, last, tag if colon else DEFAULT_TAG)
    valid = (
        len(parts) <= 3
        and _HOST.fullmatch(name.host)
        and _NAMESPACE.fullmatch(name.namespace)
        and _PART.fullmatch(name.model)
        and _PART.fullmatch(name.tag)
    )
    if not valid:
        raise model_not_found(text)
    return name

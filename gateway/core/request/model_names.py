"""Model names as people write them: `[host/][namespace/]model[:tag]`."""

import functools
from dataclasses import dataclass

from common.errors import InvalidRequest, ModelNotFound
from common.model_names import DEFAULT_HOST, DEFAULT_NAMESPACE, split_model_name

# Every request asks for its model's name several times. Only names are kept, and those are short.
_NAMES_CACHED_MAX = 1024


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
    """Build the error for a name that no node has, with the text that clients compare."""
    return ModelNotFound(f"model '{name}' not found", param="model")


def given_model(name: str) -> str:
    """Return the name that a request gives.

    Raises:
        InvalidRequest: it gives none.
    """
    if not name:
        raise InvalidRequest("model is required", param="model")
    return name


@functools.lru_cache(maxsize=_NAMES_CACHED_MAX)
def parse_model_name(text: str) -> ModelName:
    """Split a name and fill in the defaults.

    Raises:
        ModelNotFound: the text is no name, so no model can have it; tell the client.
    """
    parts = split_model_name(text)
    if parts is None:
        raise model_not_found(text)
    return ModelName(*parts)

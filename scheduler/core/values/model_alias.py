"""A second name of a model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAlias:
    """Both names as people wrote them, with tags. The target is a model, never another alias."""

    name: str
    target: str

"""Tiny models of many shapes, made from nothing: random weights, real tokenizers, the same bytes every time.

Examples:
    >>> model = build("moe", directory)
    >>> model, projector = build_pair("vision", directory)
    >>> adapter = build_adapter(model, directory)
    >>> big = build(shape("1b"), directory)
    >>> broken = damage(model, "cut-in-data")
"""

from pathlib import Path

from tools.model_zoo.adapter import build_adapter
from tools.model_zoo.catalogue import SHAPES, ZOO, UnknownModel, recipe_of, shape
from tools.model_zoo.damage import Damage, damage
from tools.model_zoo.recipe import Recipe
from tools.model_zoo.writer import write_model

__all__ = [
    "SHAPES",
    "ZOO",
    "Damage",
    "Recipe",
    "UnknownModel",
    "build",
    "build_adapter",
    "build_pair",
    "damage",
    "shape",
]


def build(model: str | Recipe, directory: Path) -> Path:
    """Return the model's file `<directory>/<name>.gguf`; write it unless the same one is there.

    Raises:
        UnknownModel: choose one of the names in the message.
    """
    recipe = recipe_of(model) if isinstance(model, str) else model
    return write_model(recipe, directory)


def build_pair(name: str, directory: Path) -> tuple[Path, Path]:
    """Return the files of a vision model: the text model and its projector.

    Raises:
        UnknownModel: there is no such model, or it has no projector.
    """
    projector = recipe_of(name).projector
    if projector is None:
        raise UnknownModel(f"model {name!r} has no projector")
    return build(name, directory), build(projector, directory)

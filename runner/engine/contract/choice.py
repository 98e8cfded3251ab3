"""Choice of the engine for a model. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from common.errors import InvalidRequest


class EngineName(StrEnum):
    """The engines of this build, as settings and layouts name them."""

    BATCHED = "batched"  # continuous batching in one llama.cpp context
    POOLED = "pooled"  # vectors and scores instead of tokens
    REFERENCE = "reference"  # llama-cpp-python's own class, one sequence at a time: what the others are compared with
    FAKE = "fake"  # computes nothing, in a time and with faults that are set


DEFAULT = EngineName.BATCHED
# What computes a text's vector instead of its continuation; the fake needs no model, so none is foreign to it.
_POOLS = frozenset({EngineName.POOLED, EngineName.FAKE})
_GENERATES = frozenset({EngineName.BATCHED, EngineName.REFERENCE, EngineName.FAKE})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine, and why it is not the one that was asked for; empty if it is."""

    name: EngineName
    warning: str = ""


def parse_engine(name: str) -> EngineName | None:
    """Parse the name of an engine; None where it is left open.

    Raises:
        InvalidRequest: there is no such engine; the text lists those that are.
    """
    if not name:
        return None
    try:
        return EngineName(name)
    except ValueError:
        known = ", ".join(EngineName)
        raise InvalidRequest(f"there is no engine {name!r}; there are {known}", param="engine") from None


def choose_engine(*, layout: str, setting: str, pools: bool) -> EngineChoice:
    """Choose by what the layout says, else the setting, else what the architecture requires, else the default.

    One setting holds for all models of a deployment, so a name that does not fit this model gives way.

    Args:
        layout: the name in the model's layout; may be empty.
        setting: the name in the process's settings; may be empty.
        pools: whether the architecture makes vectors instead of text.

    Raises:
        InvalidRequest: one of the names is unknown, whether it would count or not.
    """
    in_layout, in_setting = parse_engine(layout), parse_engine(setting)
    required = EngineName.POOLED if pools else DEFAULT
    asked = in_layout or in_setting
    if asked is None or asked in (_POOLS if pools else _GENERATES):
        return EngineChoice(name=asked or required)
    kind = "makes vectors" if pools else "generates text"
    return EngineChoice(name=required, warning=f"this model {kind}: engine {required} is used instead of {asked}")

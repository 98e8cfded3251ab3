"""Constraints as words on a command line: `replicas_min=2 devices=GPU-1,GPU-2 require_gpu`. Pure."""

from collections.abc import Sequence
from typing import Any

from cli.core.conversation import number_if_one
from common.byte_sizes import parse_byte_size
from common.nearest import did_you_mean

_LISTS = frozenset({"nodes", "devices"})
_NUMBER_LISTS = frozenset({"tensor_split"})
_TEXTS = frozenset({"backend", "max_shape", "policy", "cache_type_k", "cache_type_v", "flash_attention"})
_SWITCHES = frozenset({"require_gpu", "pinned", "preload", "use_mmap"})
_NUMBERS = frozenset(
    {
        "num_gpu",
        "main_gpu",
        "replicas_min",
        "replicas_max",
        "priority",
        "slots",
        "num_ctx",
        "num_batch",
        "num_thread",
    }
)
_NAMES = _LISTS | _NUMBER_LISTS | _TEXTS | _SWITCHES | _NUMBERS | {"keep_alive", "max_bytes"}
_YES_NO = {"": True, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_SHARE_MAX = 1_000_000
WORDS_TEXT = "write NAME=VALUE, NAME for a switch, NAME= to forget one"


def constraints_of_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the body's fields for words of the command line; None: remove the field.

    Raises:
        ValueError: a word that means nothing.
    """
    return dict(_field(word) for word in words)


def _field(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    name = name.strip().replace("-", "_")
    if name in _SWITCHES:
        if equals and not text:
            return name, None
        if text.lower() not in _YES_NO:
            raise ValueError(f"{name} is true or false, not {text!r}")
        return name, _YES_NO[text.lower()]
    if name not in _NAMES:
        raise ValueError(f"{name!r} is no constraint{did_you_mean(name, _NAMES)}")
    if not equals:
        raise ValueError(f"{name} needs a value")
    return name, _value(name, text) if text else None


def _value(name: str, text: str) -> Any:
    if name in _LISTS:
        return [part for part in text.split(",") if part]
    if name in _TEXTS:
        return text
    if name in _NUMBER_LISTS:
        return _shares(name, text)
    if name in _NUMBERS:
        return _whole(name, text)
    if name == "max_bytes":
        return dict(_cap(part) for part in text.split(",") if part)
    return number_if_one(text)  # keep_alive


def _cap(part: str) -> tuple[str, int]:
    """`GPU-1:8G`, or `8G` for every device."""
    label, _, size = part.rpartition(":")
    try:
        return label or "*", parse_byte_size(size)
    except ValueError as error:
        raise ValueError(f"max_bytes: {size!r} is no size; write 8GiB, 8GB or a number of bytes") from error


def _shares(name: str, text: str) -> list[float]:
    parts = [part for part in text.split(",") if part]
    try:
        shares = [float(part) for part in parts]
    except ValueError as error:
        raise ValueError(f"{name} is numbers, as in 3,1, not {text!r}") from error
    for part, share in zip(parts, shares, strict=True):
        if not 0 <= share <= _SHARE_MAX:  # nan is neither
            raise ValueError(f"{name} is numbers from 0 to {_SHARE_MAX}, not {part!r}")
    if not any(shares):
        raise ValueError(f"{name} needs a share above 0")
    return shares


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError(f"{name} is a whole number, not {text[:64]!r}") from error

"""Constraints as words on a command line: `replicas_min=2 devices=GPU-1,GPU-2 require_gpu`. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from cli.core.conversation import number_if_one
from common.byte_sizes import parse_byte_size
from common.nearest import did_you_mean

_SWITCHES = frozenset({"require_gpu", "pinned", "preload", "use_mmap"})
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
    if name not in _READS:
        raise ValueError(f"{name!r} is no constraint{did_you_mean(name, _SWITCHES | _READS.keys())}")
    if not equals:
        raise ValueError(f"{name} needs a value")
    return name, _READS[name](name, text) if text else None


def _parts(_: str, text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _caps(name: str, text: str) -> dict[str, int]:
    return dict(_cap(part) for part in _parts(name, text))


def _cap(part: str) -> tuple[str, int]:
    """`GPU-1:8G`, or `8G` for every device."""
    label, _, size = part.rpartition(":")
    try:
        return label or "*", parse_byte_size(size)
    except ValueError as error:
        raise ValueError(f"max_bytes: {size!r} is no size; write 8GiB, 8GB or a number of bytes") from error


def _shares(name: str, text: str) -> list[float]:
    parts = _parts(name, text)
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


_TEXTS = ("backend", "max_shape", "policy", "cache_type_k", "cache_type_v", "flash_attention", "draft")
_MODEL_NUMBERS = ("num_gpu", "main_gpu", "num_ctx", "num_batch", "num_thread", "rollback_tokens")
_REPLICA_NUMBERS = ("replicas_min", "replicas_max", "priority", "slots")
# How the text of each name is read, beside the switches.
_READS: dict[str, Callable[[str, str], Any]] = {
    **dict.fromkeys(("nodes", "devices"), _parts),
    **dict.fromkeys(_TEXTS, lambda _, text: text),
    **dict.fromkeys((*_MODEL_NUMBERS, *_REPLICA_NUMBERS), _whole),
    "tensor_split": _shares,
    "max_bytes": _caps,
    "keep_alive": lambda _, text: number_if_one(text),
}

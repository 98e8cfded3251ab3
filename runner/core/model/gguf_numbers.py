"""Checks of a model's shape from its header: few enough blocks, and heads that divide. Pure.

The engine divides by these numbers and makes arrays of their size before it looks at them twice.
"""

from collections.abc import Mapping, Sequence

BLOCKS_MAX = 512  # of any model that the engine loads
# Endings of the keys that are looked at; the architecture is in front.
ENDINGS = (
    b".block_count",
    b".embedding_length",
    b".attention.head_count",
    b".attention.head_count_kv",
    b".attention.key_length",
)
ARCHITECTURE_KEY = b"general.architecture"

Numbers = int | Sequence[int]


class BadNumbers(Exception):
    """The numbers contradict each other. `key` is the one that the complaint is about."""

    def __init__(self, message: str, key: bytes) -> None:
        super().__init__(message)
        self.message = message
        self.key = key


def check_numbers(architecture: bytes, values: Mapping[bytes, Numbers]) -> None:
    """Compare what a header says of its model; what it does not say is left to the engine.

    Raises:
        BadNumbers: too many blocks, or heads that do not divide.
    """

    def of(ending: bytes) -> tuple[bytes, Sequence[int]]:
        key = architecture + ending
        value = values.get(key, ())
        return key, (value,) if isinstance(value, int) else value

    key, blocks = of(b".block_count")
    for count in blocks:
        if count > BLOCKS_MAX:
            raise BadNumbers(f"{count} blocks, at most {BLOCKS_MAX} are allowed", key)
    (heads_key, heads), (shared_key, shared) = of(b".attention.head_count"), of(b".attention.head_count_kv")
    for each, fewer in _pairs(heads, shared):
        # A block without attention has no heads; one whose heads are many has a divisor of them for keys and values.
        if fewer > 0 and each % fewer:
            raise BadNumbers(f"{each} heads cannot share {fewer} heads of keys and values", shared_key)
    if not of(b".attention.key_length")[1]:
        for each, width in _pairs(heads, of(b".embedding_length")[1]):
            if each > 0 and width % each:
                raise BadNumbers(f"a width of {width} cannot be divided among {each} heads", heads_key)


def _pairs(one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int]]:
    """Block by block; a single number holds for every block."""
    if len(one) == 1:
        return [(one[0], item) for item in other]
    if len(other) == 1:
        return [(item, other[0]) for item in one]
    return list(zip(one, other, strict=False))

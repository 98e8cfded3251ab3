"""A sequence that is worked out when somebody looks at it, and once. For what most decisions do without."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, overload

One = TypeVar("One")


class Lazily(Sequence[One]):
    """What `find` gives; nobody may change in between what it looks at."""

    def __init__(self, find: Callable[[], Iterable[One]]) -> None:
        self._find = find
        self._found: tuple[One, ...] | None = None

    @property
    def _all(self) -> tuple[One, ...]:
        if self._found is None:
            self._found = tuple(self._find())
        return self._found

    @overload
    def __getitem__(self, index: int) -> One: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[One]: ...
    def __getitem__(self, index: int | slice) -> One | Sequence[One]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

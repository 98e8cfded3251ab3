"""Names of the beginnings of a sequence, with the inputs that hold each of them. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from common.spec.prompt_names import inputs_at, name_prompt


class SequenceNames:
    """Names of a prompt, and of the answer as it grows. The event loop appends, any thread may read."""

    __slots__ = ("_inputs", "_named")

    def __init__(self, parts: Iterable[bytes], *, salt: str, pieces: Sequence[bytes] | None, inputs: int) -> None:
        """Name a prompt.

        Args:
            parts: its bytes, as a gateway names them.
            salt: of the request.
            pieces: bytes of each of its inputs; None: they are not those of its parts (ids, images), so every name
                stands for the whole prompt.
            inputs: how many it has.
        """
        named = self._named = name_prompt(parts, salt=salt)
        if pieces is None:
            self._inputs = [inputs] * len(named.names)
        else:
            self._inputs = inputs_at(named.ends, pieces, size_bytes=named.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of prompt and answer."""
        return self._named.size_bytes

    def add(self, piece: bytes, *, inputs: int) -> None:
        """Append a token of the answer, which is the last of so many inputs."""
        self._named.add(piece)
        self._inputs += [inputs] * (len(self._named.names) - len(self._inputs))

    def within(self, inputs: int) -> tuple[int, ...]:
        """Return the names of what so many inputs hold, the shortest first."""
        return tuple(self._named.names[: bisect_right(self._inputs, inputs)])

    def all(self) -> tuple[int, ...]:
        """Return every name, the shortest first."""
        return tuple(self._named.names)

"""Runners that are forked from a warm process instead of started by a new interpreter. Pure."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from runner.core.host.environment import CARDS

# Messages: the zygote can fork; the host has heard of the fork, which may become a runner; its end, negative: a signal.
READY, GO, EXIT_STATUS = b"ready", b"go", struct.Struct("i")
# Each is a mode of `python -m runner`. The others report on the engine and the drivers as they are installed now, so
# they load them anew.
FORKED_MODES = ("serve", "measure", "inspect", "rpc")
# Read when a backend starts. Whatever else an operator sets for a device may be read when a library is loaded, which
# has happened before the fork.
_READ_LATE = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GGML_DISABLE_VULKAN",
        "GGML_VK_VISIBLE_DEVICES",
        "VK_DRIVER_FILES",
        "VK_ICD_FILENAMES",
        CARDS,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """Content of a request. The descriptors come beside it: standard input, output and error, then those of `places`.

    `words` is the whole command line; `places` are the numbers that its descriptors have in the runner.
    """

    words: Sequence[str]
    environment: Mapping[str, str]
    places: Sequence[int] = ()

    def encode(self) -> bytes:
        """Return the request as bytes; names of files need not be text."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> "ForkRequest":
        """Return the request that was encoded."""
        return cls(**json.loads(content))


def can_fork(words: Sequence[str], *, interpreter: str, own_variables: Mapping[str, str]) -> bool:
    """Return True if a fork can become this command; `own_variables` are set beside what every child gets."""
    is_forked = list(words[:3]) == [interpreter, "-m", "runner"] and words[3:4] and words[3] in FORKED_MODES
    return bool(is_forked) and own_variables.keys() <= _READ_LATE

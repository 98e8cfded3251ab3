"""Facts about a load that llama.cpp reports in its log only. Pure: lines in, facts out."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

# Parts of the lines below; the rest of the log is not kept.
NOTED = ("assigned to device", "sched copies", "Flash Attention")
_LAYER = re.compile(r"layer\s+(\d+) assigned to device \S+, is_swa = ([01])")
_COPIES = re.compile(r"sched copies = (\d+)")
_ATTENTION = re.compile(r"Flash Attention (enabled|not supported)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNotes:
    """None or empty: the engine said nothing, or says it in other words than it used to."""

    windowed: dict[int, bool]  # blocks that see a window of the context only, by number
    graph_copies: int | None = None  # more than one: devices work as a pipeline
    flash_attention: bool | None = None  # what "auto" became


def parse_notes(lines: Iterable[str]) -> LoadNotes:
    """Read the lines of one load, the last of a kind counts."""
    windowed: dict[int, bool] = {}
    copies: int | None = None
    attention: bool | None = None
    for line in lines:
        if layer := _LAYER.search(line):
            windowed[int(layer[1])] = layer[2] == "1"
        elif found := _COPIES.search(line):
            copies = int(found[1])
        elif found := _ATTENTION.search(line):
            attention = found[1] == "enabled"
    return LoadNotes(windowed=windowed, graph_copies=copies, flash_attention=attention)


class MemoryClass(StrEnum):
    """Purpose of a buffer."""

    WEIGHTS = "weights"
    CACHE = "cache"
    GRAPH = "graph"
    ADAPTERS = "adapters"
    PROJECTOR = "the projector"


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRefusal:
    """`buffer` is the engine's name of the buffer type; 0 bytes and "" where the log does not say."""

    buffer: str
    size_bytes: int
    what: MemoryClass


# What llama.cpp logs when a buffer was refused, as opposed to a file or a layout that it cannot have.
_REFUSED = ("unable to allocate", "failed to allocate", "out of memory", "alloc_tensor_range", "cudaMalloc")
_SIZED = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")
_NAMED = re.compile(r"unable to allocate (\S+) buffer")
_CLASSES = (
    ("kv cache", MemoryClass.CACHE),
    ("rs cache", MemoryClass.CACHE),
    ("output buffer", MemoryClass.CACHE),
    ("compute", MemoryClass.GRAPH),
    ("lora", MemoryClass.ADAPTERS),
)


def find_refusal(lines: Iterable[str], *, phase: MemoryClass) -> BufferRefusal | None:
    """Return the allocation that ended a load; None if it failed for another reason.

    Args:
        lines: errors of the load, oldest first.
        phase: what was being allocated, where the lines do not say it.
    """
    said = [line for line in lines if line]
    if not any(word in line for line in said for word in _REFUSED):
        return None
    what = next((kind for word, kind in _CLASSES if any(word in line for line in said)), phase)
    sized = [found for line in said if (found := _SIZED.search(line))]
    named = [found for line in said if (found := _NAMED.search(line))]
    if sized:
        return BufferRefusal(buffer=sized[0][1], size_bytes=int(sized[0][2]), what=what)
    return BufferRefusal(buffer=named[0][1] if named else "", size_bytes=0, what=what)

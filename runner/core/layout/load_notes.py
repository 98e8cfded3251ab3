"""Facts about a load that llama.cpp reports in its log only. Pure: lines in, facts out."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

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

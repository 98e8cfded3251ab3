"""Set-up and verdict lines of the bars of saved conversations."""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from common.spec.layout import FlashAttention
from runner.host.states.store import NodeStates
from tests.integration.runner.saved_states import open_node

TIER_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar: what was measured, and whether it was reached; None: it could not be measured here."""

    bar: str
    text: str
    reached: bool | None

    def line(self) -> str:
        """Return it for people and scripts."""
        word = "SKIPPED" if self.reached is None else "reached" if self.reached else "MISSED"
        return f"{self.bar} {word}: {self.text}"


@dataclass(frozen=True, slots=True)
class Setup:
    """Model and prompt of every measurement."""

    model: Path
    directory: Path
    tokens: int

    def options(self, *, slots: int = 2) -> dict[str, Any]:
        """Options of an engine that holds the prompt."""
        return {"slots": slots, "context": self.tokens + 1024, "threads": 2, "flash_attention": FlashAttention.ON}

    def prompt(self, seed: int, tokens: int = 0) -> list[int]:
        """Random token ids."""
        draw = Random(seed)
        return [draw.randrange(300, 1000) for _ in range(tokens or self.tokens)]

    def node(self) -> NodeStates:
        """Open the store of a node."""
        return open_node(self.directory, ram_bytes=TIER_BYTES, disk_bytes=TIER_BYTES)


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of values; NaN of none, with which no comparison holds."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else math.nan

"""Sampling of one sequence: every parameter with its default, its rule and its names elsewhere, declared once. Pure.

A new parameter is a field here, a field of the same name in `protos/runner.proto`, and its use in a sampler. Options of
requests and of Modelfiles, their checks, the codec, and both services follow from the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from common.spec.rules import OptionKind, Rule

INT32_MAX = 2**31 - 1
_UNIT = "between 0 and 1"


def _declare(default: object, rule: Rule, gguf: str) -> Any:
    return field(default=default, metadata={"rule": rule, "gguf": gguf})


def _number(default: float, low: float, high: float, text: str, *, gguf: str = "", low_open: bool = False) -> Any:
    return _declare(default, Rule(kind=OptionKind.FLOAT, low=low, high=high, range_text=text, low_open=low_open), gguf)


def _whole(default: int, low: int, text: str, *, gguf: str = "") -> Any:
    return _declare(default, Rule(kind=OptionKind.INTEGER, low=low, high=INT32_MAX, range_text=text), gguf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Every parameter by which the tokens of one sequence are chosen. `gguf`: its name below `general.sampling`."""

    temperature: float = _number(0.8, 0, 10, "between 0 and 10", gguf="temp")
    top_k: int = _whole(40, -1, "between -1 and the size of the vocabulary", gguf="top_k")
    top_p: float = _number(0.9, 0, 1, _UNIT, gguf="top_p")
    min_p: float = _number(0.0, 0, 1, _UNIT, gguf="min_p")
    typical_p: float = _number(1.0, 0, 1, _UNIT)
    # Tokens to look back at; -1: the whole context.
    repeat_last_n: int = _whole(64, -1, "between -1 and num_ctx", gguf="penalty_last_n")
    repeat_penalty: float = _number(1.0, 0, 10, "greater than 0 and at most 10", gguf="penalty_repeat", low_open=True)
    presence_penalty: float = _number(0.0, -2, 2, "between -2 and 2")
    frequency_penalty: float = _number(0.0, -2, 2, "between -2 and 2")
    dry_multiplier: float = _number(0.0, 0, 100, "between 0 and 100")
    dry_base: float = _number(1.75, 1, 10, "between 1 and 10")
    dry_allowed_length: int = _whole(2, 0, "at least 0")
    dry_penalty_last_n: int = _whole(-1, -1, "at least -1")
    dry_sequence_breakers: tuple[str, ...] = field(default=(), metadata={"rule": Rule(kind=OptionKind.STRINGS)})
    xtc_probability: float = _number(0.0, 0, 1, _UNIT, gguf="xtc_probability")
    xtc_threshold: float = _number(0.1, 0, 1, _UNIT, gguf="xtc_threshold")
    top_n_sigma: float = _number(0.0, -1, 100, "between -1 and 100")
    dynatemp_range: float = _number(0.0, 0, 10, "between 0 and 10")
    dynatemp_exponent: float = _number(1.0, 0, 10, "between 0 and 10")
    # By token id.
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata={"rule": Rule(kind=OptionKind.BIAS)})
    # Unsigned, 64 bits; no option of the same meaning, because requests have signed seeds, and -1 for a drawn one.
    seed: int = 0

    @property
    def greedy(self) -> bool:
        """True if the most likely token is taken and no draw is made."""
        return self.temperature <= 0.0

    @property
    def penalised(self) -> bool:
        """True if earlier tokens change the logits."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )

    @property
    def avoids_repeats(self) -> bool:
        """True if DRY changes the logits."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0

    @property
    def excludes_top(self) -> bool:
        """True if XTC may leave out the likeliest tokens of a step."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5 and not self.greedy


RULES: Mapping[str, Rule] = {one.name: one.metadata["rule"] for one in fields(Sampling) if one.metadata}
# Keys by which a GGUF file recommends a value, with the parameter that each names.
GGUF_KEYS: Mapping[str, str] = {
    f"general.sampling.{one.metadata['gguf']}": one.name for one in fields(Sampling) if one.metadata.get("gguf")
}

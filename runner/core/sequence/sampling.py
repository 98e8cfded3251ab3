"""How the next token of a sequence is chosen: the parameters, their limits, and the seed of each draw. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import InvalidRequest

TOP_LOGPROBS_MAX = 20
# A bias this low is a ban: the token must not come up even if every other one is unlikely.
BAN_BIAS = -100.0
# XTC draws from another row of numbers than the choice of the token.
_XTC_SEED = 0x5854435F44524157
_MASK_64 = (1 << 64) - 1
# llama.cpp reads this seed as "take a random one".
_RANDOM_SEED = 0xFFFFFFFF

_ANY = (-math.inf, math.inf, "")
_NOT_NEGATIVE = (0.0, math.inf, "not be negative")
_LOOKS_BACK = (-1, math.inf, "be -1 or more")
_RANGES: Mapping[str, tuple[float, float, str]] = {
    "temperature": _ANY,
    "top_p": _NOT_NEGATIVE,
    "min_p": _NOT_NEGATIVE,
    "typical_p": _NOT_NEGATIVE,
    "repeat_penalty": _ANY,
    "repeat_last_n": _LOOKS_BACK,
    "presence_penalty": _ANY,
    "frequency_penalty": _ANY,
    "dry_multiplier": _NOT_NEGATIVE,
    "dry_base": (1.0, math.inf, "be at least 1"),
    "dry_allowed_length": _NOT_NEGATIVE,
    "dry_penalty_last_n": _LOOKS_BACK,
    "xtc_probability": (0.0, 1.0, "be between 0 and 1"),
    "xtc_threshold": (0.0, 1.0, "be between 0 and 1"),
    "top_n_sigma": _ANY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """Every knob of one sequence, with the defaults of the protocol. `repeat_last_n` -1 means the whole context."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_breakers: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)  # `dry.find_breakers`
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_n_sigma: float = 0.0

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

    def excludes_at(self, position: int) -> bool:
        """True if XTC leaves tokens out at this output position: a draw of its own, by seed and position alone."""
        if not self.excludes_top:
            return False
        return draw_seed(self.seed ^ _XTC_SEED, position) / 2**32 < self.xtc_probability


def check_sampling(parameters: SamplingParameters, *, vocabulary_size: int) -> None:
    """Refuse values that the engine could not use.

    Raises:
        InvalidRequest: names the field; the caller corrects it.
    """
    for name, (low, high, text) in _RANGES.items():
        value = getattr(parameters, name)
        if not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number", param=name)
        if not low <= value <= high:
            raise InvalidRequest(f"{name} must {text}", param=name)
    if parameters.repeat_penalty <= 0.0:
        raise InvalidRequest("repeat_penalty must be greater than 0", param="repeat_penalty")
    for token_id, bias in parameters.logit_bias.items():
        if token_id >= vocabulary_size:
            raise InvalidRequest(f"logit_bias names token {token_id}, the vocabulary ends before", param="logit_bias")
        if math.isnan(bias):
            raise InvalidRequest("logit_bias must be a number", param="logit_bias")


def draw_seed(seed: int, position: int) -> int:
    """Seed of the draw for output `position`: depends on these two alone, so that a stream can go on elsewhere.

    Source: splitmix64's finaliser (Steele, Lea, Flood 2014).
    """
    mixed = (seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK_64
    drawn = (mixed ^ (mixed >> 31)) & 0xFFFFFFFF
    return drawn if drawn != _RANDOM_SEED else 0

"""How the next token of a sequence is chosen: the parameters, their limits, and the seed of each draw. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from common.errors import InvalidRequest

TOP_LOGPROBS_MAX = 20
# A bias this low is a ban: the token must not come up even if every other one is unlikely.
BAN_BIAS = -100.0
_MASK_64 = (1 << 64) - 1
# llama.cpp reads this seed as "take a random one".
_RANDOM_SEED = 0xFFFFFFFF


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


def check_sampling(parameters: SamplingParameters, *, vocabulary_size: int) -> None:
    """Refuse values that the engine could not use.

    Raises:
        InvalidRequest: names the field; the caller corrects it.
    """
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
    ):
        if not math.isfinite(getattr(parameters, name)):
            raise InvalidRequest(f"{name} must be a finite number", param=name)
    for name in ("top_p", "min_p", "typical_p"):
        if getattr(parameters, name) < 0.0:
            raise InvalidRequest(f"{name} must not be negative", param=name)
    if parameters.repeat_penalty <= 0.0:
        raise InvalidRequest("repeat_penalty must be greater than 0", param="repeat_penalty")
    if parameters.repeat_last_n < -1:
        raise InvalidRequest("repeat_last_n must be -1 or more", param="repeat_last_n")
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

"""Check of the sampling parameters, and the seed of each draw. Pure."""

import math

from common.errors import InvalidRequest
from common.spec.rules import OptionKind
from common.spec.sampling import RULES, Sampling

TOP_LOGPROBS_MAX = 20
# A bias this low is a ban: the token must not come up even if every other one is unlikely.
BAN_BIAS = -100.0
# XTC draws from another row of numbers than the choice of the token.
_XTC_SEED = 0x5854435F44524157
_MASK_64 = (1 << 64) - 1
# llama.cpp reads this seed as "take a random one".
_RANDOM_SEED = 0xFFFFFFFF


def excludes_top_at(sampling: Sampling, position: int) -> bool:
    """Return True if XTC leaves tokens out at this output position: a draw of its own, by seed and position alone."""
    if not sampling.excludes_top:
        return False
    return draw_seed(sampling.seed ^ _XTC_SEED, position) / 2**32 < sampling.xtc_probability


def check_sampling(sampling: Sampling, *, vocabulary_size: int) -> None:
    """Refuse values that the engine could not use.

    Raises:
        InvalidRequest: names the field; the caller corrects it.
    """
    for name, rule in RULES.items():
        if rule.kind not in (OptionKind.INTEGER, OptionKind.FLOAT):
            continue
        value = getattr(sampling, name)
        if not math.isfinite(value):
            raise InvalidRequest(f"{name} must be a finite number", param=name)
        if not rule.allows(value):
            raise InvalidRequest(f"{name} must be {rule.range_text}", param=name)
    for token_id, bias in sampling.logit_bias.items():
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

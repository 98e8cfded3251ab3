"""Log-probabilities of one position from its raw logits. Pure, numpy only."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities of one position, from the raw logits."""

    chosen: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), highest first, ties by id


def log_normaliser(logits: NDArray[np.float32]) -> np.float64:
    """Log Σ exp(logits), stable: the maximum is taken out, the sum is float64."""
    highest = logits.max()
    total: np.float64 = np.float64(highest) + np.log(np.exp(logits - highest).sum(dtype=np.float64))
    return total


def token_logprobs(logits: NDArray[np.float32], chosen: int, top: int) -> TokenLogprobs:
    """Log-probability of the chosen token and of the `top` likeliest ones, highest first, ties by id."""
    normaliser = log_normaliser(logits)
    likeliest: tuple[tuple[int, float], ...] = ()
    if top > 0:
        ids = _likeliest(logits, min(top, logits.size))
        likeliest = tuple((int(token_id), float(logits[token_id] - normaliser)) for token_id in ids)
    return TokenLogprobs(float(logits[chosen] - normaliser), likeliest)


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Ids of the `count` highest logits; ties at the bar, which a partition finds, go to the lowest ids."""
    bar = np.partition(logits, logits.size - count)[logits.size - count]
    above = np.flatnonzero(logits > bar)
    at_bar = np.flatnonzero(logits == bar)[: count - above.size]
    ids = np.concatenate((above, at_bar))
    order = np.lexsort((ids, -logits[ids]))
    ordered: NDArray[np.intp] = ids[order]
    return ordered

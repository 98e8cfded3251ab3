"""Formulas that the engine computes by itself, for what is compared with it."""

import numpy as np
from numpy.typing import NDArray

from runner.core.sequence.logprobs import log_normaliser


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural log-probabilities, float64[vocabulary], of logits float32[vocabulary]."""
    return logits - log_normaliser(logits)


def without_top(logits: NDArray[np.float32], threshold: float) -> NDArray[np.float32]:
    """Remove the likeliest tokens: of those at least as likely as `threshold`, only the least likely stays.

    Source: llama.cpp's XTC sampler.
    """
    shares = np.exp(logits - logits.max())
    shares /= shares.sum()
    (likely,) = np.nonzero(shares >= threshold)
    kept = logits.copy()
    if likely.size > 1:
        kept[np.delete(likely, likely.size - 1 - shares[likely][::-1].argmin())] = -np.inf
    return kept

"""DRY ("don't repeat yourself"): make tokens unlikely that would lengthen a repetition. Pure, numpy only.

Source: the rule of llama.cpp's sampler (there from KoboldCpp, by pi6am). Lengths are kept from token to token,
which takes microseconds, instead of being computed anew.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.spec.sampling import Sampling

# A breaker's first token to the tokens that may follow it; an empty rest: the token alone breaks.
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
BREAKER_TOKENS_MAX = 20
# ln of the largest float32.
_FLOAT_MAX_LOG = 88.7228391


def find_breakers(
    texts: Iterable[str], *, pieces: Sequence[bytes], tokenize: Callable[[bytes], list[int]]
) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Return the tokens, or sequences of tokens, that each text can be written with."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for text in texts:
        wanted = text.encode()
        for token_id, piece in enumerate(pieces):
            if wanted in piece:
                found.setdefault(token_id, set()).add(())
            elif wanted[:1] in piece:
                for length in range(1, min(len(wanted), len(piece) + 1)):
                    if piece.endswith(wanted[:length]):
                        rest = tuple(tokenize(wanted[length:])[:BREAKER_TOKENS_MAX])
                        found.setdefault(token_id, set()).add(rest)
    return {token_id: tuple(sorted(rests)) for token_id, rests in found.items()}


class Dry:
    """The last tokens of a sequence, and at each of them how long a repetition of the newest ones ends there."""

    def __init__(
        self, parameters: Sampling, breakers: Breakers, *, context_tokens: int, earlier: Iterable[int]
    ) -> None:
        """`earlier` are the prompt and resumed ids, which count as said."""
        last = parameters.dry_penalty_last_n if parameters.dry_penalty_last_n >= 0 else context_tokens
        self._window = max(1, last)
        self._allowed = parameters.dry_allowed_length
        self._multiplier = parameters.dry_multiplier
        self._base = parameters.dry_base
        self._breakers = breakers
        self._single = frozenset(token_id for token_id, rests in self._breakers.items() if () in rests)
        said = np.fromiter(earlier, np.int32)[-self._window :]
        self._tokens = np.zeros(2 * self._window, np.int32)  # the window slides over it
        self._lengths = np.zeros(2 * self._window, np.int32)
        self._start, self._stop = 0, said.size
        self._tokens[: said.size] = said
        self._lengths[: said.size] = _suffix_lengths(said.tolist())
        heads = [at for at, token_id in enumerate(said.tolist()) if token_id in self._breakers]
        self._heads = deque(heads, maxlen=self._window)  # where a breaker may begin

    def accept(self, token_id: int) -> None:
        """Record a chosen token."""
        if self._stop == self._tokens.size:
            self._slide()
        start, stop = self._start, self._stop
        same = self._tokens[start:stop] == token_id
        longer = np.zeros(stop - start, np.int32)
        longer[1:] = self._lengths[start : max(start, stop - 1)]
        self._lengths[start:stop] = (longer + 1) * same
        self._tokens[stop] = token_id
        self._lengths[stop] = 0
        if token_id in self._breakers:
            self._heads.append(stop)
        self._stop += 1
        self._start = max(self._start, self._stop - self._window)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lower the logits float32[vocabulary] of tokens that would go on with a repetition."""
        count = self._stop - self._start
        limit = self._length_max(count)
        if count <= self._allowed or limit < self._allowed:
            return
        lengths = np.minimum(self._lengths[self._start : self._stop - 1], np.arange(1, count))
        lengths = np.minimum(lengths, limit)
        (repeats,) = np.nonzero(lengths >= self._allowed)
        if not repeats.size:
            return
        following = self._tokens[self._start + 1 + repeats]
        longest: dict[int, int] = {}
        for token_id, length in zip(following.tolist(), lengths[repeats].tolist(), strict=True):
            if length > longest.get(token_id, -1):
                longest[token_id] = length
        for token_id, length in longest.items():
            if token_id >= 0 and token_id not in self._single:  # below 0: part of an image
                logits[token_id] -= np.float32(self._penalty(length))

    def _penalty(self, length: int) -> float:
        exponent = length - self._allowed
        if self._base > 1.000001:
            exponent = min(exponent, int(_FLOAT_MAX_LOG / math.log(self._base)))
        return self._multiplier * math.pow(self._base, exponent)

    def _length_max(self, count: int) -> int:
        """Return the longest repetition that does not reach over the newest breaker."""
        for head in reversed(self._heads):
            back = self._stop - 1 - head
            if head < self._start:
                break
            followed = self._tokens[head + 1 : self._stop].tolist()[:BREAKER_TOKENS_MAX]
            matching = [
                len(rest)
                for rest in self._breakers[int(self._tokens[head])]
                if len(rest) <= back and tuple(followed[: len(rest)]) == rest
            ]
            if matching:
                return back - max(matching)
        return count

    def _slide(self) -> None:
        count, distance = self._stop - self._start, self._start
        self._tokens[:count] = self._tokens[self._start : self._stop].copy()
        self._lengths[:count] = self._lengths[self._start : self._stop].copy()
        self._heads = deque((at - distance for at in self._heads if at >= distance), maxlen=self._window)
        self._start, self._stop = 0, count


def _suffix_lengths(tokens: list[int]) -> list[int]:
    """For each place, how many tokens up to it are those at the end. Source: the Z-algorithm, from the end on."""
    count = len(tokens)
    lengths = [0] * count
    backwards = tokens[::-1]
    left = right = 0
    for at in range(1, count):
        length = min(right - at, lengths[count - 1 - (at - left)]) if at < right else 0
        while at + length < count and backwards[length] == backwards[at + length]:
            length += 1
        lengths[count - 1 - at] = length
        if at + length > right:
            left, right = at, at + length
    return lengths

"""A model that is a formula: its vocabulary, and logits that follow from seed, prompt and position. Pure."""

import re
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from common.spec.sampling import Sampling
from runner.core.sequence.sampling import draw_seed, excludes_top_at
from tests.engines.formulas import log_softmax, without_top

BEGIN, END = 256, 257
_NAMES = {BEGIN: b"<begin>", END: b"<end>"}
_SPECIAL = re.compile(b"(" + b"|".join(map(re.escape, _NAMES.values())) + b")")
_IDS = {name: token_id for token_id, name in _NAMES.items()}
# What the model says of itself; every other token is this much less likely.
_SAID = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8).astype(np.intp)
_UNLIKELY = -20.0
_CERTAIN = 20.0


class FakeVocabulary:
    """One token for each byte, and two control tokens."""

    size = 256 + len(_NAMES)
    control = frozenset(_NAMES)
    end_tokens = frozenset({END})
    bos = BEGIN
    adds_bos = True

    def __init__(self) -> None:
        self.pieces: Sequence[bytes] = [*(bytes([byte]) for byte in range(256)), *_NAMES.values()]

    def tokenize(self, text: bytes, *, parse_special: bool) -> list[int]:
        """Token ids of UTF-8 text, without begin token."""
        if not parse_special:
            return list(text)
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            ids += [_IDS[part]] if part in _IDS else list(part)
        return ids

    def detokenize(self, ids: list[int]) -> bytes:
        """The bytes of tokens, special ones included."""
        return b"".join(self.pieces[token_id] for token_id in ids)


def prompt_key(seed: int, prompt: tuple[int, ...]) -> int:
    """A number that stands for a model's seed and a prompt."""
    content = seed.to_bytes(16, "little", signed=True) + np.asarray(prompt, np.int32).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def fake_logits(key: int, position: int, *, answer_tokens: int) -> NDArray[np.float32]:
    """Raw logits float32[vocabulary] for output `position`; from `answer_tokens` on (0: never) the answer is over."""
    random = np.random.Generator(np.random.PCG64([key, position]))
    logits = random.standard_normal(FakeVocabulary.size, dtype=np.float32)
    logits += np.float32(_UNLIKELY)
    logits[_SAID] -= np.float32(_UNLIKELY)
    if answer_tokens and position >= answer_tokens:
        logits[END] = _CERTAIN
    return logits


def fake_choice(weighed: NDArray[np.float32], sampling: Sampling, position: int) -> int:
    """The likeliest token, or at a temperature a draw by (seed, position) alone; of the filters, XTC is played."""
    if sampling.greedy:
        return int(weighed.argmax())
    if excludes_top_at(sampling, position):
        weighed = without_top(weighed, sampling.xtc_threshold)
    shares = np.exp(log_softmax(weighed / np.float32(sampling.temperature))).cumsum()
    point = draw_seed(sampling.seed, position) / 2**32 * shares[-1]
    return int(np.searchsorted(shares, point, side="right"))

"""Choice between a cache per slot and one cache that all slots share. Pure.

In a shared cache every input attends over the cells of all slots, those of others masked; a prefix is shared for
nothing. In caches of their own slots see only themselves, a prefix is copied, and slots that compute together must
stand side by side, or each gap costs a pass over the weights. So small models on the CPU, whose steps are mostly
attention, get caches of their own, and everything else shares. There without fused attention, which is slower on CPUs
as long as the scores fit into little memory: 16 sequences of 57 million parameters at 400 tokens took 58 ms a step in a
shared cache, 39 ms in their own, and 15 ms in their own without the fused kernel (one thread).
"""

from common.spec.layout import FlashAttention, Layout
from runner.core.layout.cache_sizes import ModelNumbers, padded

WEIGHTS_BYTES_MAX = 256 * 1024 * 1024
SCORES_BYTES_MAX = 64 * 1024 * 1024
_SCORE_BYTES = 4
# Attention over everything that was said, positions of one number. Others keep the cache that their rules are made for.
_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})


def caches_are_separate(
    layout: Layout, *, architecture: str, numbers: ModelNumbers, weights_bytes: int, sees_images: bool
) -> bool:
    """For a resolved layout."""
    scores_bytes = layout.batch_tokens * layout.context_tokens * numbers.one("attention.head_count") * _SCORE_BYTES
    return (
        layout.slots > 1
        and not layout.devices
        and not sees_images
        and architecture in _ARCHITECTURES
        and not numbers.one("attention.sliding_window")
        and layout.flash_attention is FlashAttention.AUTO
        and layout.cache_types == ("f16", "f16")
        # Every slot's cache is padded; then all of them together are as large as the shared one.
        and padded(layout.context_tokens) == layout.context_tokens
        and weights_bytes <= WEIGHTS_BYTES_MAX
        and scores_bytes <= SCORES_BYTES_MAX
    )

"""Bytes of cache for each block, from the model's header, and whether slots share one cache. Pure.

KV: cells * (key length * kv heads * bytes(type_k) + value length * kv heads * bytes(type_v)). A windowed block has
only the cells that its window needs. A recurrent block has a state of 32-bit floats for each slot, at any context.
Source: the sizes that llama.cpp gives its caches (hparams.n_embd_k_gqa, n_embd_r, n_embd_s; kv-cache-iswa).
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from common.spec.layout import FlashAttention, Layout
from runner.core.model.description import Value

# ggml's blocks: bytes for each value. q8_0 has 34 bytes for 32 values, q4_0 18.
_VALUE_BYTES = {"f16": Fraction(2), "q8_0": Fraction(34, 32), "q4_0": Fraction(18, 32)}
_STATE_VALUE_BYTES = 4
WEIGHTS_BYTES_MAX = 256 * 1024 * 1024
SCORES_BYTES_MAX = 64 * 1024 * 1024
_SCORE_BYTES = 4
# Attention over everything that was said, positions of one number. Others keep the cache that their rules are made for.
_ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
SEPARATE_GRAPH_TOKENS = 128
CELL_STEP = 256  # llama.cpp pads contexts to this


def padded(cells: int) -> int:
    """Cells as llama.cpp pads them."""
    return -(-cells // CELL_STEP) * CELL_STEP


class ModelNumbers:
    """Numbers of a header by short key; per block where the file gives an array."""

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        """`metadata` with every array in full."""
        self._metadata = metadata
        self._architecture = str(metadata.get("general.architecture", ""))
        self.block_count = self.one("block_count")

    def one(self, key: str, block: int = 0) -> int:
        """Return a number, of a block if there is one for each; 0 where the header has none."""
        value = self._metadata.get(f"{self._architecture}.{key}")
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = value[block] if block < len(value) else 0
        return int(value) if isinstance(value, int | float) else 0

    def has(self, key: str) -> bool:
        """Return True if the header has the key."""
        return f"{self._architecture}.{key}" in self._metadata

    def windowed(self) -> tuple[bool, ...]:
        """Return the blocks that attend to a window only, by the header; a report of the engine is more exact."""
        key = "attention.sliding_window_pattern"
        value = self._metadata.get(f"{self._architecture}.{key}")
        if not self.one("attention.sliding_window") or value is None:
            return (False,) * self.block_count
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(bool(self.one(key, block)) for block in range(self.block_count))
        period = self.one(key)
        return tuple(period > 0 and block % period < period - 1 for block in range(self.block_count))


def block_cache_bytes(
    numbers: ModelNumbers, layout: Layout, *, windowed: Sequence[bool], cells: int
) -> tuple[int, ...]:
    """Bytes of each block's cache with a resolved layout. Blocks of an unknown kind count as 0.

    Args:
        numbers: of the model.
        layout: resolved.
        windowed: for each block, whether it sees a window only.
        cells: of all slots together, for blocks that see everything.
    """
    return tuple(
        _state_bytes(numbers, block) * layout.state_copies
        if not numbers.one("attention.head_count_kv", block) and _state_bytes(numbers, block)
        else _cell_bytes(numbers, layout, block) * _cells(numbers, layout, cells, windowed=windowed[block])
        for block in range(numbers.block_count)
    )


def _cells(numbers: ModelNumbers, layout: Layout, full: int, *, windowed: bool) -> int:
    window = numbers.one("attention.sliding_window")
    if not windowed or not window:
        return full
    return padded(min(full, window * layout.slots + (layout.ubatch_tokens or layout.batch_tokens)))


def _cell_bytes(numbers: ModelNumbers, layout: Layout, block: int) -> int:
    heads = numbers.one("attention.head_count", block)
    if not heads:
        return 0
    kv_heads = numbers.one("attention.head_count_kv", block) if numbers.has("attention.head_count_kv") else heads
    head_length = numbers.one("embedding_length") // heads
    key_values = (numbers.one("attention.key_length", block) or head_length) * kv_heads
    value_values = (numbers.one("attention.value_length", block) or head_length) * kv_heads
    key_bytes, value_bytes = (_VALUE_BYTES[name] for name in layout.cache_types)
    return int(key_values * key_bytes + value_values * value_bytes)


def _state_bytes(numbers: ModelNumbers, block: int) -> int:
    """Return the recurrent state of one sequence in one block."""
    inner, state = numbers.one("ssm.inner_size", block), numbers.one("ssm.state_size", block)
    if inner:
        convolved = inner + 2 * numbers.one("ssm.group_count") * state
        return ((numbers.one("ssm.conv_kernel") - 1) * convolved + state * inner) * _STATE_VALUE_BYTES
    if numbers.one("shortconv.l_cache"):
        return (numbers.one("shortconv.l_cache") - 1) * numbers.one("embedding_length") * _STATE_VALUE_BYTES
    if numbers.one("wkv.head_size"):
        width = numbers.one("embedding_length")
        shifts = numbers.one("token_shift_count") or 2
        return (shifts * width + width * numbers.one("wkv.head_size")) * _STATE_VALUE_BYTES
    return 0


def caches_are_separate(
    layout: Layout, *, architecture: str, numbers: ModelNumbers, weights_bytes: int, sees_images: bool
) -> bool:
    """Return True if each slot of a resolved layout gets a cache of its own, instead of one that all slots share.

    In a shared cache every input attends over the cells of all slots, those of others masked; a prefix is shared for
    nothing. In caches of their own slots see only themselves, a prefix is copied, and slots that compute together must
    stand side by side, or each gap costs a pass over the weights. So small models on the CPU, whose steps are mostly
    attention, get caches of their own, and everything else shares. There without fused attention, which is slower on
    CPUs as long as the scores fit into little memory: 16 sequences of 57 million parameters at 400 tokens took 58 ms a
    step in a shared cache, 39 ms in their own, and 15 ms in their own without the fused kernel (one thread).

    Their graphs have SEPARATE_GRAPH_TOKENS, unless the layout says how many: without the fused kernel the scores of all
    cells up to the last of a graph are computed, also those behind each token.
    """
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

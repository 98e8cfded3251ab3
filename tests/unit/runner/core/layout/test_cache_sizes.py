"""Bytes of each block's cache by formula."""

from typing import Any

import pytest

from common.spec.layout import Layout
from runner.core.layout.cache_sizes import ModelNumbers, block_cache_bytes
from runner.core.layout.layout import cache_cells

DENSE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.embedding_length": 4096,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
}


def layout(**fields: Any) -> Layout:
    sizes = {"context_tokens": 1024, "slots": 2, "batch_tokens": 256, "cache_type_k": "f16", "cache_type_v": "f16"}
    return Layout(**{**sizes, **fields})


def sizes(metadata: dict[str, Any], wanted: Layout) -> tuple[int, ...]:
    numbers = ModelNumbers(metadata)
    return block_cache_bytes(numbers, wanted, windowed=numbers.windowed(), cells=cache_cells(wanted))


@pytest.mark.behaviour("B-44", "B-64")
def test_cells_times_values_of_every_key_head() -> None:
    assert sizes(DENSE, layout()) == (2048 * 8 * 2 * 128 * 2,) * 3


@pytest.mark.behaviour("B-71")
def test_head_sizes_come_from_the_file() -> None:
    wide = {**DENSE, "llama.attention.key_length": 192, "llama.attention.value_length": 64}
    assert sizes(wide, layout()) == (2048 * 8 * (192 + 64) * 2,) * 3


@pytest.mark.parametrize(("kind", "numerator"), [("q8_0", 34), ("q4_0", 18)])
def test_quantised_values_have_their_blocks_sizes(kind: str, numerator: int) -> None:
    half = 2048 * 8 * 128 * 2
    assert sizes(DENSE, layout(cache_type_k=kind)) == (half + half * numerator // 64,) * 3


@pytest.mark.behaviour("B-44")
def test_a_windowed_block_has_the_cells_that_its_window_needs() -> None:
    windowed = {**DENSE, "llama.attention.sliding_window": 100, "llama.attention.sliding_window_pattern": 3}
    cell = 8 * 2 * 128 * 2
    # Two windows and a batch, padded to 256 cells.
    assert sizes(windowed, layout()) == (512 * cell, 512 * cell, 2048 * cell)
    assert sizes(windowed, layout(ubatch_tokens=32)) == (256 * cell, 256 * cell, 2048 * cell)
    assert sizes(windowed, layout(context_tokens=128)) == (256 * cell, 256 * cell, 256 * cell)
    listed = {**windowed, "llama.attention.sliding_window_pattern": [False, True, False]}
    assert sizes(listed, layout()) == (2048 * cell, 512 * cell, 2048 * cell)


@pytest.mark.behaviour("B-44")
def test_a_recurrent_block_has_a_state_for_each_slot_and_no_cells() -> None:
    mamba = {
        "general.architecture": "mamba",
        "mamba.block_count": 2,
        "mamba.embedding_length": 128,
        "mamba.ssm.inner_size": 256,
        "mamba.ssm.state_size": 16,
        "mamba.ssm.conv_kernel": 4,
    }
    assert sizes(mamba, layout()) == (256 * (16 + 3) * 4 * 2,) * 2
    assert sizes(mamba, layout(context_tokens=8192)) == sizes(mamba, layout())
    assert sizes(mamba, layout(rollback_tokens=3)) == tuple(4 * size for size in sizes(mamba, layout()))


def test_a_hybrid_has_both() -> None:
    hybrid = {
        "general.architecture": "lfm2",
        "lfm2.block_count": 3,
        "lfm2.embedding_length": 128,
        "lfm2.attention.head_count": 4,
        "lfm2.attention.head_count_kv": [0, 2, 0],
        "lfm2.shortconv.l_cache": 3,
    }
    state, cells = 2 * 128 * 4 * 2, 2048 * 2 * 2 * 32 * 2
    assert sizes(hybrid, layout()) == (state, cells, state)


def test_a_header_that_does_not_tell_counts_as_nothing() -> None:
    assert sizes({"general.architecture": "new", "new.block_count": 2}, layout()) == (0, 0)

"""Layouts that can be reserved in host RAM."""

from typing import Any

import pytest

from runner.core.layout.memory_report import ClassBytes
from runner.core.layout.reservation import cache_bytes_max, host_shortage_bytes, needs_counting

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.embedding_length": 4096,
}


@pytest.mark.behaviour("B-71")
def test_the_bound_of_the_cache_is_the_formula() -> None:
    assert cache_bytes_max(LLAMA, cells=1024) == 32 * 8 * 2 * 128 * 2 * 1024


@pytest.mark.behaviour("B-71")
def test_named_head_sizes_win_over_embedding_by_heads() -> None:
    wide = {**LLAMA, "llama.attention.key_length": 192, "llama.attention.value_length": 128}
    assert cache_bytes_max(wide, cells=1) == 32 * 8 * (192 + 128) * 2


def test_heads_per_layer_count_as_the_largest() -> None:
    assert cache_bytes_max({**LLAMA, "llama.attention.head_count_kv": [0, 4, 8, 0]}, cells=1) == cache_bytes_max(
        LLAMA, cells=1
    )


def test_without_key_heads_every_head_has_its_own() -> None:
    plain = {key: value for key, value in LLAMA.items() if not key.endswith("head_count_kv")}
    assert cache_bytes_max(plain, cells=1) == 32 * 32 * 2 * 128 * 2


def test_a_header_that_does_not_tell_has_to_be_counted() -> None:
    assert cache_bytes_max({"general.architecture": "mamba", "mamba.block_count": 4}, cells=1) is None
    assert needs_counting(cache_bytes=None, weights_bytes=1, free_bytes=1 << 40)


def test_only_what_may_be_too_large_is_counted() -> None:
    assert not needs_counting(cache_bytes=30, weights_bytes=20, free_bytes=100)
    assert needs_counting(cache_bytes=31, weights_bytes=20, free_bytes=100)


@pytest.mark.behaviour("B-61")
def test_mapped_weights_need_no_room() -> None:
    host = ClassBytes(weights_bytes=50, cache_bytes=60, graph_bytes=30)
    assert host_shortage_bytes(host, free_bytes=100, weights_are_mapped=True) == 0
    assert host_shortage_bytes(host, free_bytes=100, weights_are_mapped=False) == 40
    assert host_shortage_bytes(host, free_bytes=80, weights_are_mapped=True) == 10

"""Models that give each slot a cache of its own."""

from dataclasses import replace
from typing import Any

import pytest

from common.spec.layout import DeviceLayers, FlashAttention, Layout
from runner.core.layout.cache_sizes import WEIGHTS_BYTES_MAX, ModelNumbers, caches_are_separate

LAYOUT = Layout(slots=16, context_tokens=1024, batch_tokens=512, cache_type_k="f16", cache_type_v="f16")
NUMBERS: dict[str, Any] = {"general.architecture": "llama", "llama.block_count": 8, "llama.attention.head_count": 8}


def separate(
    layout: Layout = LAYOUT, *, architecture: str = "llama", numbers: dict[str, Any] | None = None, **facts: Any
) -> bool:
    return caches_are_separate(
        layout,
        architecture=architecture,
        numbers=ModelNumbers({**NUMBERS, **(numbers or {})}),
        **{"weights_bytes": 60_000_000, "sees_images": False, **facts},
    )


def test_a_small_model_on_the_cpu_has_a_cache_for_each_slot() -> None:
    assert separate()


def test_a_large_model_shares_because_gaps_between_slots_cost_passes_over_its_weights() -> None:
    assert not separate(weights_bytes=WEIGHTS_BYTES_MAX + 1)


def test_what_needs_the_shared_cache_keeps_it() -> None:
    assert not separate(architecture="gemma3")
    assert not separate(numbers={"llama.attention.sliding_window": 64})
    assert not separate(sees_images=True)


@pytest.mark.parametrize(
    "change",
    [
        {"slots": 1},
        {"devices": (DeviceLayers("gpu", 9),)},
        {"flash_attention": FlashAttention.ON},
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
    ],
)
def test_layouts_that_ask_for_something_else_share(change: dict[str, Any]) -> None:
    assert not separate(replace(LAYOUT, **change))


def test_padding_never_makes_the_caches_larger_than_the_shared_one() -> None:
    assert not separate(replace(LAYOUT, context_tokens=1000))


def test_scores_without_fused_attention_stay_small() -> None:
    assert not separate(replace(LAYOUT, context_tokens=8192))

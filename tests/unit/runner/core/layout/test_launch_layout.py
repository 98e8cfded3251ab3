"""Open fields of a layout, and the values that they get."""

import pytest

from common.errors import InvalidRequest
from common.spec.layout import FlashAttention, Layout
from runner.core.layout.layout import automatic_threads, cache_cells, resolve_layout


def resolved(layout: Layout, trained: int = 0) -> Layout:
    return resolve_layout(layout, trained_context_tokens=trained, cpu_threads=3).layout


def test_an_empty_layout_gets_every_default() -> None:
    layout = resolved(Layout())
    assert (layout.context_tokens, layout.slots, layout.batch_tokens, layout.threads) == (4096, 8, 512, 3)
    assert (layout.cache_type_k, layout.cache_type_v, layout.engine) == ("f16", "f16", "batched")


def test_the_default_context_is_no_larger_than_the_trained_one() -> None:
    assert resolved(Layout(), trained=2048).context_tokens == 2048
    assert resolved(Layout(context_tokens=8000), trained=2048).context_tokens == 8000


@pytest.mark.behaviour("B-18")
def test_a_quantised_cache_without_flash_attention_becomes_f16_with_a_warning() -> None:
    layout = Layout(cache_type_k="q8_0", cache_type_v="q4_0", flash_attention=FlashAttention.OFF)
    result = resolve_layout(layout, trained_context_tokens=0, cpu_threads=1)
    assert (result.layout.cache_type_k, result.layout.cache_type_v) == ("f16", "f16")
    assert result.warnings == (
        "cache type q8_0 needs flash attention; f16 is used",
        "cache type q4_0 needs flash attention; f16 is used",
    )


@pytest.mark.behaviour("B-18")
@pytest.mark.parametrize("attention", [FlashAttention.AUTO, FlashAttention.ON])
def test_a_quantised_cache_stays_where_flash_attention_may_be_used(attention: FlashAttention) -> None:
    assert resolved(Layout(cache_type_k="q8_0", flash_attention=attention)).cache_type_k == "q8_0"


def test_unknown_cache_types_and_too_many_slots_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="q5_9"):
        resolved(Layout(cache_type_k="q5_9"))
    with pytest.raises(InvalidRequest, match="256 slots"):
        resolved(Layout(slots=257))


def test_more_cells_than_the_engine_can_number_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="cells"):
        resolved(Layout(context_tokens=100_000_000, slots=200))


def test_cells_are_padded() -> None:
    assert cache_cells(resolved(Layout(context_tokens=100, slots=3))) == 512


@pytest.mark.parametrize(("weights_mib", "threads"), [(0, 1), (31, 1), (32, 2), (96, 4), (4096, 4)])
def test_small_models_are_computed_by_few_threads(weights_mib: int, threads: int) -> None:
    assert automatic_threads(physical_cores=4, weights_bytes=weights_mib << 20) == threads

"""Where the number of compute threads shows in the numbers that come out. Pure."""

from runner.core.layout.layout import FlashAttention, LaunchLayout

SPLIT_CELLS_MIN = 512


def lone_steps_round_by_threads(layout: LaunchLayout, *, cells: int) -> bool:
    """Whether a call of one token rounds differently with another number of threads.

    Fused attention of one query cuts the cells into as many pieces as there are threads and adds up what each of them
    found, in half precision. Everything else gives the same bits with any number. Source:
    ggml_compute_forward_flash_attn_ext_f16 in llama.cpp.

    Args:
        layout: as the engine opened it.
        cells: of the context.
    """
    fused = layout.flash_attention is not FlashAttention.OFF
    return fused and layout.cache_type_k == layout.cache_type_v == "f16" and cells >= SPLIT_CELLS_MIN

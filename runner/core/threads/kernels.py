"""Properties of llama.cpp's CPU kernels that a runner allows for: rounding by threads, and a fault. Pure."""

from collections.abc import Mapping

from common.spec.layout import FlashAttention, Layout

SPLIT_CELLS_MIN = 512
_RECURRENT_PARTS = (".ssm_", ".shortconv", ".time_mix_")
_SEVERAL_MATRICES = (".attn_k_b.", ".attn_v_b.", "altup_")  # of latent attention one for each head, of Gemma 3n
_AMX_TYPES = frozenset({"f16", "q4_0", "q4_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_xs"})


def lone_steps_round_by_threads(layout: Layout, *, cells: int) -> bool:
    """Return True if a call of one token rounds differently with another number of threads.

    Fused attention of one query cuts the cells into as many pieces as there are threads and adds up what each of them
    found, in half precision. Everything else gives the same bits with any number. Source:
    ggml_compute_forward_flash_attn_ext_f16 in llama.cpp.

    Args:
        layout: as the engine opened it.
        cells: of the context.
    """
    fused = layout.flash_attention is not FlashAttention.OFF
    return fused and layout.cache_types == ("f16", "f16") and cells >= SPLIT_CELLS_MIN


def breaks_on_amx(tensor_types: Mapping[str, str]) -> bool:
    """Return True if the engine's AMX kernels would compute this model wrongly.

    They take byte offsets for offsets of values in products with a third dimension, and write sums beyond their place.
    Recurrent layers, which compute every sequence of a batch apart, and weights of several matrices have one. Source:
    ggml_backend_amx_mul_mat in llama.cpp.

    Args:
        tensor_types: ggml's name of each tensor's type, by the tensor's name.
    """
    recurrent = any(part in name for name in tensor_types for part in _RECURRENT_PARTS)
    on_amx = (name for name, kind in tensor_types.items() if kind.lower() in _AMX_TYPES)
    return any(recurrent or any(part in name for part in _SEVERAL_MATRICES) for name in on_amx)

"""Faults of the engine that the runner stays clear of. Pure."""

from collections.abc import Mapping

_RECURRENT_PARTS = (".ssm_", ".shortconv", ".time_mix_")
_WEIGHTS_PER_HEAD = (".attn_k_b.", ".attn_v_b.")  # of latent attention: a matrix for each head


def breaks_on_amx(tensor_types: Mapping[str, str]) -> bool:
    """Whether the engine's AMX kernels would read beyond this model's activations.

    For weights in f16 they take byte offsets for offsets of values as soon as there is a third dimension: in recurrent
    layers, which compute every sequence of a batch apart, and in latent attention, whose weights have one matrix for
    each head. Source: ggml_backend_amx_mul_mat in llama.cpp.

    Args:
        tensor_types: ggml's name of each tensor's type, by the tensor's name.
    """
    recurrent = any(part in name for name in tensor_types for part in _RECURRENT_PARTS)
    if recurrent and "f16" in tensor_types.values():
        return True
    return any(kind == "f16" and any(part in name for part in _WEIGHTS_PER_HEAD) for name, kind in tensor_types.items())

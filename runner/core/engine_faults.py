"""Faults of the engine that the runner stays clear of. Pure."""

from collections.abc import Mapping

_RECURRENT_PARTS = (".ssm_", ".shortconv", ".time_mix_")


def breaks_on_amx(tensor_types: Mapping[str, str]) -> bool:
    """Whether the engine's AMX kernels would read beyond this model's activations.

    For weights in f16 they take byte offsets for offsets of floats as soon as the activations have a third dimension:
    in recurrent layers, which compute every sequence of a batch apart. Source: ggml_backend_amx_mul_mat in llama.cpp.

    Args:
        tensor_types: ggml's name of each tensor's type, by the tensor's name.
    """
    recurrent = any(part in name for name in tensor_types for part in _RECURRENT_PARTS)
    return recurrent and "f16" in tensor_types.values()

"""What a child of the host gets from its environment. Pure.

An allow-list: keys for registries, Redis addresses and whatever else the host was started with stay with the host.
"""

from collections.abc import Mapping

_NAMES = frozenset(
    {
        "HOME",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "TMPDIR",
        "TZ",
        "VIRTUAL_ENV",
        # Settings that concern runners themselves.
        "PUNA_DEBUG",
        "PUNA_ENGINE",
        "PUNA_ENGINE_OPTIONS",
        "PUNA_INSECURE",
        # The mark by which `puna down` finds what a killed `puna up` left behind.
        "_PUNA_CLUSTER",
        # What limits the devices that the engine sees; a user who set one wants it obeyed.
        "CUDA_HOME",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
_PREFIXES = ("GGML_", "LC_", "LLAMA_", "OMP_")
# CUDA numbers cards by speed unless told otherwise; and an abort must not wait for a debugger to print a backtrace.
_ALWAYS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GGML_NO_BACKTRACE": "1"}


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the host's environment that a runner gets, and what every runner needs."""
    allowed = {name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return {**allowed, **_ALWAYS}

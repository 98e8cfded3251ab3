"""Environment of a host's children. Pure.

An allow-list: keys for registries, Redis addresses and whatever else the host was started with stay with the host.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What limits the devices that the engine sees; a user who set one wants it obeyed.
LIMITS = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GGML_VK_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "HIP_VISIBLE_DEVICES",
        "HSA_OVERRIDE_GFX_VERSION",
        "NVIDIA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
    }
)
_NAMES = LIMITS | {
    "CUDA_HOME",
    "CUDA_MODULE_LOADING",
    "GLIBC_TUNABLES",
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
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    # Settings that concern runners themselves.
    "PUNA_COUNT_SWAP",
    "PUNA_DEBUG",
    "PUNA_ENGINE",
    "PUNA_ENGINE_OPTIONS",
    "PUNA_INSECURE",
    "PUNA_PLAINTEXT",
    "PUNA_PREFETCH",
    "PUNA_RESERVE_CHECK",
    # The mark by which `puna down` finds what a killed `puna up` left behind.
    "_PUNA_CLUSTER",
}
_PREFIXES = ("CUDA_CACHE_", "CUDA_MPS_", "GGML_", "GOMP_", "HSA_", "LC_", "LLAMA_", "OMP_")
# CUDA numbers cards by speed by default; an abort must not wait for a debugger to print a backtrace; and numpy would
# start a thread for every core at its import, for algebra that runners leave to the engine.
_ALWAYS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GGML_NO_BACKTRACE": "1", "OPENBLAS_NUM_THREADS": "1"}
# The cards that the host's driver watch knows, for children that would otherwise have to ask the driver themselves.
CARDS = "_PUNA_CARDS"
# Backends whose cards can be hidden by UUID. Vulkan counts cards in an order of its own, so nothing is hidden there.
_VISIBILITY = {"CUDA": "CUDA_VISIBLE_DEVICES", "ROCm": "ROCR_VISIBLE_DEVICES"}
_NOTHING = {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
# HIP counts anew among what ROCR shows, and takes CUDA's variable where it finds none of its own.
_COUNTED_ANEW = ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
# What makes a backend find no device, and where it can be, not even load a driver.
HIDING: Mapping[str, Mapping[str, str]] = {
    "CUDA": {"CUDA_VISIBLE_DEVICES": "-1"},
    "ROCm": {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
    "Vulkan": {
        "GGML_DISABLE_VULKAN": "1",  # builds that load backends as plugins do not read it
        "GGML_VK_VISIBLE_DEVICES": "",
        "VK_DRIVER_FILES": "/nonexistent",
        "VK_ICD_FILENAMES": "/nonexistent",  # as older loaders know it
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevice:
    """A device that a child may use. `uuid` is empty where the driver names none."""

    id: str
    backend: str
    uuid: str = ""


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the host's environment that a runner gets, and what every runner needs."""
    allowed = {name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)}
    traced = {name: value for name, value in environment.items() if name.startswith("OTEL_") and not _is_secret(name)}
    return {**allowed, **traced, **_ALWAYS}


def _is_secret(name: str) -> bool:
    """Names of OpenTelemetry that carry credentials: a runner sends its spans without."""
    return name.endswith(("_HEADERS", "_CLIENT_KEY"))


def limit_visibility(devices: Iterable[VisibleDevice], *, backends: Iterable[str]) -> dict[str, str]:
    """Return the variables that hide every other card from a child; cards are in the order of the devices.

    A card that is seen costs a context of some hundred MiB, even if no layer lies there. `backends` are those of the
    engine: variables of others are left alone, and so is a backend of which a card has no UUID to be named by.
    """
    chosen = list(devices)
    limits: dict[str, str] = {}
    for backend, name in _VISIBILITY.items():
        if backend not in backends:
            continue
        uuids = [device.uuid for device in chosen if device.backend == backend]
        if all(uuids):
            limits[name] = ",".join(uuids) or _NOTHING[name]
        if backend == "ROCm" and uuids and all(uuids):
            limits |= dict.fromkeys(_COUNTED_ANEW, ",".join(str(number) for number in range(len(uuids))))
    return limits


def hide(backends: Iterable[str]) -> dict[str, str]:
    """Return the variables that hide whole backends from a child, as far as they can be hidden."""
    return {name: value for backend in backends for name, value in HIDING.get(backend, {}).items()}


def cards_left(uuids: Sequence[str], *, backend: str, limits: Mapping[str, str]) -> list[str]:
    """Return the cards of a backend that the user's own limits leave. `uuids` are in the order of their addresses.

    A list of numbers or UUIDs ends at the first entry that names no card, as drivers read it.
    """
    names = {"CUDA": ("CUDA_VISIBLE_DEVICES",), "ROCm": ("ROCR_VISIBLE_DEVICES", *_COUNTED_ANEW)}.get(backend, ())
    left = list(uuids)
    for name in names:
        if name in limits:
            left = _chosen(left, limits[name])
    return left


def _chosen(uuids: Sequence[str], wanted: str) -> list[str]:
    chosen: list[str] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if entry.isdecimal():
            named = uuids[int(entry) : int(entry) + 1]
        else:
            named = [uuid for uuid in uuids if entry and uuid.startswith(entry)][:1]
        if not named:
            break
        chosen += named
    return chosen


def device_environment(devices: Iterable[VisibleDevice], settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the operator's variables for these devices, for "*" first; nothing else is ever set for a device."""
    wanted = dict(settings.get("*", {}))
    for device in devices:
        wanted |= settings.get(device.id, {})
    return wanted


def limits_set(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the user's own limits on what the engine sees."""
    return {name: environment[name] for name in sorted(LIMITS) if name in environment}

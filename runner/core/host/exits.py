"""Why a runner's process ended, from its exit code and the end of its log. Pure."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

LINES_KEPT = 5
MESSAGE_LENGTH_MAX = 1000
# Said by llama.cpp, ggml and the C library when memory runs out.
_OUT_OF_MEMORY = ("out of memory", "unable to allocate", "failed to allocate", "cannot allocate memory", "bad_alloc")
_BAD_FILE = ("invalid magic", "tensor data is not within", "gguf_init_from", "unknown model architecture")
# Said when the device itself failed, not the model on it: by CUDA, HIP, Vulkan, Metal and the kernel.
_DEVICE_ERROR = (
    "cuda error",
    "rocm error",
    "hip error",
    "vk::devicelosterror",
    "errordevicelost",
    "vk_error_device_lost",
    "device lost",
    "has fallen off the bus",
    "uncorrectable ecc",
    "no kernel image",
    "command buffer execution failed",
)
_NAMED_DEVICE = re.compile(r"current device: (\d+)")
_TELLING = ("error", "abort", "assert", "terminate", "exception", "failed", "fatal", *_OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """`reason` names a row of the error table."""

    reason: str
    message: str


def explain_exit(exit_code: int | None, log_tail: str, *, was_ready: bool) -> ExitCause:
    """Classify the end of a process. `exit_code` is negative for a signal, None where it could not be read."""
    how = _how(exit_code)
    lines = [line.strip() for line in log_tail.splitlines() if line.strip()]
    lowered = log_tail.lower()
    if any(sign in lowered for sign in _OUT_OF_MEMORY):
        reason = "device_memory_exhausted"
    elif any(sign in lowered for sign in _DEVICE_ERROR):
        reason = "device_lost"
    elif not was_ready and any(sign in lowered for sign in _BAD_FILE):
        reason = "bad_model_file"
    else:
        reason = "runner_lost"
    telling = [line for line in lines if any(sign in line.lower() for sign in _TELLING)] or lines
    detail = " | ".join(telling[-LINES_KEPT:])
    phase = "" if was_ready else " while loading"
    message = f"the runner {how}{phase}" + (f": {detail}" if detail else "")
    return ExitCause(reason=reason, message=message[:MESSAGE_LENGTH_MAX])


def last_error_line(log_tail: str) -> str:
    """The last line of a log that tells of an error; empty: none does."""
    lines = (line.strip() for line in reversed(log_tail.splitlines()))
    found = (line for line in lines if any(sign in line.lower() for sign in _TELLING))
    return next(found, "")[:MESSAGE_LENGTH_MAX]


def blamed_devices(message: str, device_ids: Sequence[str]) -> list[str]:
    """Which devices of a layout an error of a device may mean: the one that CUDA names by its number, else all."""
    named = _NAMED_DEVICE.search(message.lower())
    if named is not None and int(named[1]) < len(device_ids):
        return [device_ids[int(named[1])]]
    return list(device_ids)


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "is gone"
    if exit_code >= 0:
        return f"exited with status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "?"
    return f"was ended by signal {-exit_code} ({name})"

"""Reason for the end of a runner's process, from its exit code and the end of its log. Pure."""

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.core.host.leases import rpc_server_of

MIB = 1024 * 1024
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
_NAMED_DEVICE = re.compile(r"(?:current device: |mib on device )(\d+)")
_REFUSED_SIZE = re.compile(r"allocating (\d+(?:\.\d+)?) mib")
_ERROR_LEVELS = ("error", "critical")
_TELLING = (
    *("error", "abort", "assert", "terminate", "exception", "failed", "fatal"),
    *(*_OUT_OF_MEMORY, *_BAD_FILE, *_DEVICE_ERROR),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    """`reason` names a row of the error table."""

    reason: str
    message: str


def explain_exit(exit_code: int | None, log_tail: str, *, was_ready: bool) -> ExitCause:
    """Classify the end of a process. `exit_code` is negative for a signal, None where it could not be read."""
    how = _how(exit_code)
    errors, others = _error_lines(log_tail)
    detail = " | ".join((errors or others)[-LINES_KEPT:])  # else whatever was not an event of ours
    lowered = detail.lower()
    if any(sign in lowered for sign in _OUT_OF_MEMORY):
        reason = "device_memory_exhausted"
    elif any(sign in lowered for sign in _DEVICE_ERROR):
        reason = "device_lost"
    elif not was_ready and any(sign in lowered for sign in _BAD_FILE):
        reason = "bad_model_file"
    else:
        reason = "runner_lost"
    phase = "" if was_ready else " while loading"
    message = f"the runner {how}{phase}" + (f": {detail}" if detail else "")
    return ExitCause(reason=reason, message=message[:MESSAGE_LENGTH_MAX])


def has_loaded(log_tail: str) -> bool:
    """Return True if a log says that the model was loaded, which its host need not have heard before the end."""
    return any((_event(line) or {}).get("event") == "model.loaded" for line in log_tail.splitlines())


def last_error_line(log_tail: str) -> str:
    """Return the last line of a log that reports an error; empty: none does."""
    errors, _ = _error_lines(log_tail)
    return errors[-1][:MESSAGE_LENGTH_MAX] if errors else ""


def _error_lines(log_tail: str) -> tuple[list[str], list[str]]:
    """Return the lines that report an error, and all that no event of ours is.

    The engine, the C library and Python write plain lines; they win over our events, which are JSON.
    """
    plain, events = list[str](), list[str]()
    for line in log_tail.splitlines():
        event = _event(line)
        if event is None:
            plain.append(line.strip())
        elif event.get("level") in _ERROR_LEVELS:
            events.append(": ".join(str(event[name]) for name in ("event", "text") if event.get(name)))
    plain = [line for line in plain if line]
    return [line for line in plain if any(sign in line.lower() for sign in _TELLING)] or events, plain


def _event(line: str) -> Mapping[str, object] | None:
    """Return the event that a line logs, empty where its process ended while it wrote; None: it is none of ours."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else None


def blamed_devices(message: str, device_ids: Sequence[str]) -> list[str]:
    """Return the devices of a layout that an error of the engine may mean: the one that it names, else all.

    CUDA and HIP number the cards that the process sees, which are those of its layout in their order.
    """
    cards = [device_id for device_id in device_ids if rpc_server_of(device_id) is None]
    named = _NAMED_DEVICE.search(message.lower())
    if named is not None and int(named[1]) < len(cards):
        return [cards[int(named[1])]]
    return cards or list(device_ids)


def refused_bytes(message: str) -> int:
    """Return the size of the allocation that an error of the engine is about; 0: it does not say."""
    found = _REFUSED_SIZE.search(message.lower())
    return round(float(found[1]) * MIB) if found is not None else 0


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

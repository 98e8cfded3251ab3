"""Settings that users of Ollama have already: where a PUNA_ name is not set, its OLLAMA_ equivalent counts.

Values are read as Ollama reads them.
"""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from common.network import join_host_port

PREFIX = "OLLAMA_"
DEFAULT_PORT = 11434


def _text(value: str) -> str:
    return value


def _switch(value: str) -> str:
    """Read a switch as Ollama does: text that is no word for true or false counts as true."""
    return "false" if value.lower() in ("0", "f", "false") else "true"


def _count(value: str) -> str | None:
    """Return the value if it is a number; otherwise None, which leaves the default."""
    return value if value.isdecimal() else None


def _address(value: str) -> str:
    """Ollama takes a URL, a host, a port, or both; a scheme says which port is meant."""
    scheme, separator, rest = value.partition("://")
    parts = urlsplit(f"//{rest if separator else value}")
    port = parts.port
    if port is None:
        port = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT) if separator else DEFAULT_PORT
    return join_host_port(parts.hostname or "127.0.0.1", port)


def _one_of(*values: str) -> "Read":
    """Read one of several words as Ollama does: an unknown word leaves the default."""
    return lambda value: value.lower() if value.lower() in values else None


_BACKENDS = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "metal": "Metal", "cpu": "CPU"}


def _backend(value: str) -> str | None:
    """Ollama names builds of its engine, such as cuda_v12 or cpu_avx2."""
    return _BACKENDS.get(value.lower().partition("_")[0])


Read = Callable[[str], str | None]

# By the name without prefix: Ollama's name without prefix, and how its value is read.
EQUIVALENTS: Mapping[str, tuple[str, Read]] = {
    "HOST": ("HOST", _address),
    "ORIGINS": ("ORIGINS", _text),
    "MODELS": ("MODELS", _text),
    "KEEP_ALIVE": ("KEEP_ALIVE", _text),
    "CONTEXT_LENGTH": ("CONTEXT_LENGTH", _count),
    "NUM_PARALLEL": ("NUM_PARALLEL", _count),
    "MAX_QUEUE": ("MAX_QUEUE", _count),
    "LOAD_TIMEOUT": ("LOAD_TIMEOUT", _text),
    "MAX_LOADED_MODELS": ("MAX_LOADED_MODELS", _count),
    "DEVICE_OVERHEAD": ("GPU_OVERHEAD", _count),
    "INTEGRATED_GPUS": ("IGPU_ENABLE", lambda value: "on" if _switch(value) == "true" else "off"),
    "SCHED_SPREAD": ("SCHED_SPREAD", _switch),
    "FLASH_ATTENTION": ("FLASH_ATTENTION", lambda value: "on" if _switch(value) == "true" else "off"),
    "KV_CACHE_TYPE": ("KV_CACHE_TYPE", _one_of("f32", "f16", "q8_0", "q4_0")),
    "LLM_LIBRARY": ("LLM_LIBRARY", _backend),
    "NOPRUNE": ("NOPRUNE", _switch),
    "DEBUG": ("DEBUG", _switch),
}


def from_ollama(environment: Mapping[str, str], names: frozenset[str], *, prefix: str) -> dict[str, str]:
    """By PUNA_ name: the value of its equivalent, for those of `names` that are not set themselves."""
    values = {}
    for name, (theirs, read) in EQUIVALENTS.items():
        ours = prefix + name
        text = environment.get(PREFIX + theirs, "").strip().strip("\"'")
        if ours in names and ours not in environment and text:
            value = read(text)
            if value is not None:
                values[ours] = value
    return values


def without_meaning(environment: Mapping[str, str]) -> list[str]:
    """OLLAMA_ names that are set and mean nothing here."""
    known = {PREFIX + theirs for theirs, _ in EQUIVALENTS.values()}
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)

"""Check that a layout can be reserved in host RAM at all, before anything is allocated. Pure.

Devices refuse an allocation that is too large, and the engine says so. The kernel does not: it hands out addresses, and
kills a process once they are written.
"""

from collections.abc import Mapping

from runner.core.layout.memory_report import ClassBytes

# Below this share of the free memory the upper bound is trusted and nothing is counted.
TRUSTED_SHARE = 0.5
_BYTES_PER_VALUE_MAX = 2  # f16 is the largest cache type


def cache_bytes_max(metadata: Mapping[str, object], *, cells: int) -> int | None:
    """Return an upper bound of the KV cache in bytes from the model's header; None where the header does not tell."""
    architecture = metadata.get("general.architecture")

    def number(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, list | tuple):
            return max((item for item in value if isinstance(item, int)), default=0)
        return value if isinstance(value, int) else 0

    layers, heads = number("block_count"), number("attention.head_count")
    if not layers or not heads:
        return None
    head_size = number("embedding_length") // heads
    values = number("attention.key_length") + number("attention.value_length") or 2 * head_size
    kv_heads = number("attention.head_count_kv") or heads
    return layers * kv_heads * values * _BYTES_PER_VALUE_MAX * cells


def needs_counting(*, cache_bytes: int | None, weights_bytes: int, free_bytes: int) -> bool:
    """Return True if a layout may be so large that the engine has to count it before it allocates."""
    return cache_bytes is None or cache_bytes + weights_bytes > TRUSTED_SHARE * free_bytes


def host_shortage_bytes(host: ClassBytes, *, free_bytes: int, weights_are_mapped: bool) -> int:
    """By how much the host part exceeds what is free; 0 if it fits. Mapped weights can be dropped and read again."""
    wanted = host.cache_bytes + host.graph_bytes + (0 if weights_are_mapped else host.weights_bytes)
    return max(0, wanted - free_bytes)

"""Product and version of a Redis or Valkey server, from its INFO. Pure."""

from collections.abc import Mapping
from typing import Any

# First release of each series in which a client that may run scripts cannot run code in the server (CVE-2025-49844).
# Newer series than these begin with it, others never got it.
_PATCHED: Mapping[str, Mapping[tuple[int, int], int]] = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}


def server_version(info: Mapping[str, Any]) -> str:
    """Return product and version of a server from its INFO; Valkey also names the Redis that it is compatible with."""
    product = "Valkey" if "valkey_version" in info else "Redis"
    return f"{product} {info.get(f'{product.lower()}_version') or 'of unknown version'}"


def is_vulnerable(info: Mapping[str, Any]) -> bool:
    """Return True if a server's version has a known hole through which its clients can run code in it."""
    product, _, version = server_version(info).partition(" ")
    numbers = [int(part) for part in version.split(".") if part.isdecimal()]
    if len(numbers) < 3:
        return False
    patched, series = _PATCHED[product], (numbers[0], numbers[1])
    return numbers[2] < patched[series] if series in patched else series < max(patched)

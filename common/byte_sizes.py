"""Sizes as people write them: a number of bytes, or a text such as "8GiB"."""

import re

BYTE_SIZE_TEXT = 'a number of bytes or a size such as "8GiB"'
BYTES_MAX = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([KMGT]iB|[kMGT]B|B)?")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_UNITS |= {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_byte_size(value: object) -> int:
    """Bytes of a whole number or of a text.

    Raises:
        ValueError: neither, or more than `BYTES_MAX`.
    """
    count = -1
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())) is not None:
        unit = _UNITS[found[2] or ""]
        count = int(found[1]) * unit if found[1].isdecimal() else int(float(found[1]) * unit)
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    if not 0 <= count <= BYTES_MAX:
        raise ValueError(f"must be {BYTE_SIZE_TEXT}")
    return count

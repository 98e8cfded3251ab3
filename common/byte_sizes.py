"""Sizes as people write them, in one way for settings, files, the command line and HTTP.

A number of bytes, or one with a unit in capitals or small letters: kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB
and TiB are powers of 1024, and so are K, M, G and T alone.
"""

import re

BYTE_SIZE_TEXT = 'a number of bytes or a size such as "8GiB"'
BYTES_MAX = 2**63 - 1
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(?:([kmgt])(i?b?)|b)?", re.IGNORECASE | re.ASCII)
_LETTERS = "kmgt"


def parse_byte_size(value: object) -> int:
    """Bytes of a whole number or of a text.

    Raises:
        ValueError: neither, or more than `BYTES_MAX`.
    """
    count = -1
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())) is not None:
        number, unit = found[1], _unit_bytes((found[2] or "").lower(), (found[3] or "").lower())
        count = int(number) * unit if number.isdecimal() else int(float(number) * unit)
    elif isinstance(value, int) and not isinstance(value, bool):
        count = value
    if not 0 <= count <= BYTES_MAX:
        raise ValueError(f"must be {BYTE_SIZE_TEXT}")
    return count


def _unit_bytes(letter: str, ending: str) -> int:
    if not letter:
        return 1
    step = 1000 if ending == "b" else 1024
    return int(step ** (_LETTERS.index(letter) + 1))

"""Grammar texts for the scalars of JSON: strings, numbers in ranges, formats. Pure.

White space and digits are bounded: a model that is unsure could go on with either for ever.
"""

from collections.abc import Mapping
from math import ceil, floor

# Repetitions up to this count are written as one; longer ones in blocks.
_BLOCK = 256
_DECIMALS = 6

# Rules that others refer to, by name.
BASE_RULES: Mapping[str, str] = {
    "ws": r'" "? | "\n" [ \t]{0,20}',
    "hex": "[0-9a-fA-F]",
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" unicode)',
    # No half of a pair alone: that would be no Unicode.
    "unicode": r"[0-9A-CE-Fa-ce-f] hex hex hex | [Dd] [0-7] hex hex | pair",
    "pair": r'[Dd] [89ABab] hex hex "\\u" [Dd] [C-Fc-f] hex hex',
    "string": r'"\"" char* "\""',
    "digits": "[0-9]{1,15}",
    "integer": '"-"? ("0" | [1-9] [0-9]{0,14})',
    "number": '"-"? ("0" | [1-9] [0-9]{0,14}) ("." digits)? ([eE] [-+]? [0-9]{1,2})?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" ws (member ("," ws member)* ws)? "}"',
    "member": 'string ":" ws value',
    "array": '"[" ws (value ("," ws value)* ws)? "]"',
}
_DAY = '("0" [1-9] | [12] [0-9] | "3" [01])'
_DATE = (
    '[0-9]{4} "-" (("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" '
    + _DAY
    + ' | ("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_HOUR = '([01] [0-9] | "2" [0-3])'
_TIME = f'{_HOUR} ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_HOUR} ":" [0-5] [0-9])'
_OCTET = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9])'
_HEX = "[0-9a-fA-F]"
# Other formats are annotations.
FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
    "ipv4": f'{_OCTET} "." {_OCTET} "." {_OCTET} "." {_OCTET}',
}


def quoted(text: str) -> str:
    """Return a literal of the grammar."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character < " " or character == "\x7f":
        return f"\\x{ord(character):02X}"
    return character


def repeated(item: str, least: int, most: int | None) -> str:
    """`item`, a name or a group, so many times."""
    if most is None:
        return f"{repeated(item, least, least)} {item}*" if least else f"{item}*"
    if most <= _BLOCK:
        return f"{item}{{{least},{most}}}" if most else '""'
    if least:
        # Exactly the least ones, then as many more.
        return f"{_exactly(item, least)} {repeated(item, 0, most - least)}" if most > least else _exactly(item, least)
    blocks, rest = divmod(most, _BLOCK)
    block = f"({item}{{{_BLOCK}}})"
    fewer = f"{block}{{0,{blocks - 1}}} {item}{{0,{_BLOCK - 1}}}"
    all_of_them = f"{block}{{{blocks}}}" + (f" {item}{{0,{rest}}}" if rest else "")
    return f"({fewer} | {all_of_them})"


def _exactly(item: str, count: int) -> str:
    blocks, rest = divmod(count, _BLOCK)
    parts = [f"({item}{{{_BLOCK}}}){{{blocks}}}"] if blocks else []
    if rest:
        parts.append(f"{item}{{{rest}}}")
    return " ".join(parts)


def integer_range(low: int | None, high: int | None) -> str:
    """Integers between two bounds, both included; None: without bound. At least one lies between."""
    parts = []
    if high is None or high >= 0:
        parts.append(_natural_range(max(0, low or 0) if low is not None else 0, high))
    if low is None or low < 0:
        parts.append(
            '"-" (' + _natural_range(max(1, -high) if high is not None else 1, None if low is None else -low) + ")"
        )
    return " | ".join(parts)


def _natural_range(low: int, high: int | None) -> str:
    if high is None:
        length = len(str(low))
        within = _same_length(str(low), "9" * length)
        return " | ".join([*within, f"[1-9] [0-9]{{{length},{length + 15}}}"])
    parts: list[str] = []
    start = low
    for length in range(len(str(low)), len(str(high)) + 1):
        end = min(high, 10**length - 1)
        parts += _same_length(str(start), str(end))
        start = end + 1
    return " | ".join(parts)


def _same_length(low: str, high: str) -> list[str]:
    """Numbers of equally many digits."""
    if not low:
        return ['""']
    count = len(low) - 1
    if low.strip("0") == "" and high.strip("9") == "" and len(low) == len(high):
        return [f"[0-9]{{{len(low)}}}"]
    if low[0] == high[0]:
        return [f'"{low[0]}" {_group(_same_length(low[1:], high[1:]))}'] if count else [f'"{low[0]}"']
    if not count:
        return [f"[{low}-{high}]"]
    parts: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:].strip("0"):
        parts.append(f'"{first}" {_group(_same_length(low[1:], "9" * count))}')
        first += 1
    ending: list[str] = []
    if high[1:].strip("9"):
        ending.append(f'"{last}" {_group(_same_length("0" * count, high[1:]))}')
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{count}}}")
    return parts + ending


def _group(alternatives: list[str]) -> str:
    return alternatives[0] if len(alternatives) == 1 else "(" + " | ".join(alternatives) + ")"


def number_range(low: float | None, high: float | None, *, above: bool, below: bool) -> str | None:
    """Numbers between two bounds; `above` and `below` leave the bound itself out. None: nothing lies between.

    Whole bounds are met exactly. Of bounds that are not, the grammar gives a part: from the next whole number on, or
    with a fixed number of decimals where no whole number lies between.
    """
    parts = []
    if high is None or high >= 0.0:
        start = max(0.0, low) if low is not None else 0.0
        parts += _magnitudes(start, high, above=above and low is not None and low >= 0.0, below=below)
    if low is None or low < 0.0:
        start = max(0.0, -high) if high is not None else 0.0
        end = None if low is None else -low
        negative = _magnitudes(start, end, above=below and high is not None and high <= 0.0, below=above)
        if negative:
            parts.append('"-" (' + " | ".join(negative) + ")")
    return " | ".join(parts) if parts else None


def _magnitudes(low: float, high: float | None, *, above: bool, below: bool) -> list[str]:
    """Numbers from `low`, which is not negative, to `high`."""
    if high is not None and (high < low or (high == low and (above or below))):
        return []
    first = ceil(low)
    last = None if high is None else floor(high)
    if last is not None and last < first:
        return _decimals(low, high or 0.0, above=above, below=below)
    parts: list[str] = []
    fraction = '("." digits)?'
    whole = first  # from here on every fraction is within
    if above and first == low:
        if last is None or last > first:
            parts.append(f'"{first}." [0-9]{{0,{_DECIMALS - 1}}} [1-9]')
        whole = first + 1
    if last is None:
        return [*parts, f"({_natural_range(whole, None)}) {fraction}"]
    if whole <= last - 1:
        parts.append(f"({_natural_range(whole, last - 1)}) {fraction}")
    if whole <= last and not (below and last == high):
        parts.append(f'"{last}"')
    return parts or _decimals(low, high or 0.0, above=above, below=below)


def _decimals(low: float, high: float, *, above: bool, below: bool) -> list[str]:
    """Numbers between two bounds that have no whole number strictly between them, with few decimals."""
    parts = []
    for decimals in range(1, _DECIMALS + 1):
        scale = 10**decimals
        first, last = ceil(low * scale), floor(high * scale)
        first += above and first == low * scale
        last -= below and last == high * scale
        for whole in range(first // scale, last // scale + 1):
            start, end = max(first, whole * scale), min(last, whole * scale + scale - 1)
            if start <= end:
                digits = [f"{edge - whole * scale:0{decimals}d}" for edge in (start, end)]
                parts.append(f'"{whole}." {_group(_same_length(*digits))}')
    return parts

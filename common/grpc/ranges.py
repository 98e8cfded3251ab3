"""Ranges of the numbers in messages, by the unit that ends a field's name. Checked where messages arrive.

No working sender exceeds them. 2^60 bytes on a device or a date after the year 9999 would break sums, dates, JSON, and
fields of other messages that are narrower.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

_INT32_MAX = 2**31 - 1
_BYTES_MAX = 2**60
_EXACT_MAX = 2**53  # in JSON and in Lua
_YEAR_9999_S = 253_402_300_799
# The first ending that fits; a number without one may be anything, if it is finite. Negative ones mean "for ever",
# "all", or a date before 1970, and are as far from 0 at most.
_LARGEST: dict[str, float] = {
    "fraction": 1,
    "generation": _EXACT_MAX,
    "unix_ms": _YEAR_9999_S * 1000,
    "unix_s": _YEAR_9999_S,
    **dict.fromkeys(("bytes", "bytes_s", "bytes_total", "bytes_done", "per_s"), _BYTES_MAX),
    **dict.fromkeys(
        ("tokens", "tokens_max", "slots", "slots_total", "slots_busy", "threads", "threads_max"), _INT32_MAX
    ),
    **dict.fromkeys(("length", "size", "width", "count"), _INT32_MAX),
    **dict.fromkeys(("ms", "eta_s"), _EXACT_MAX),
}
_WIDER = {"parameter_count": _EXACT_MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """A number that cannot be meant, with the path of its field."""

    path: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the field, its range and the value."""
        if not math.isfinite(self.value):
            return f'"{self.path}" must be finite, not {self.value}'
        return f'"{self.path}" must be from {self.low:.0f} to {self.high:.0f}, not {self.value}'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    low: float
    high: float  # finite, so that inf is out of every range
    is_plain: bool  # one number
    is_message: bool
    is_repeated: bool
    is_map: bool


_fields: dict[str, tuple[_Field, ...]] = {}  # by message; reports come often, so they are worked out once


def find_out_of_range(message: Message) -> OutOfRange | None:
    """Return the first number of a message, or of messages in it, that is out of range or not finite."""
    name = message.DESCRIPTOR.full_name
    fields = _fields.get(name)
    if fields is None:
        fields = _fields[name] = tuple(_fields_of(message.DESCRIPTOR))
    for field in fields:
        if field.is_plain:
            if not field.low <= (value := getattr(message, field.name)) <= field.high:  # nan is in no range
                return OutOfRange(path=field.name, value=value, low=field.low, high=field.high)
            continue
        found = _find_in_messages(message, field) if field.is_message else _find_in_numbers(message, field)
        if found is not None:
            return found
    return None


def _find_in_messages(message: Any, field: _Field) -> OutOfRange | None:
    if field.is_repeated:
        parts = [(f"{field.name}[{index}]", part) for index, part in enumerate(getattr(message, field.name))]
    else:
        parts = [(field.name, getattr(message, field.name))] if message.HasField(field.name) else []
    for path, part in parts:
        found = find_out_of_range(part)
        if found is not None:
            return OutOfRange(path=f"{path}.{found.path}", value=found.value, low=found.low, high=found.high)
    return None


def _find_in_numbers(message: Any, field: _Field) -> OutOfRange | None:
    content = getattr(message, field.name)
    for value in content.values() if field.is_map else content:
        if not field.low <= value <= field.high:
            return OutOfRange(path=field.name, value=value, low=field.low, high=field.high)
    return None


def _fields_of(descriptor: Any, around: frozenset[str] = frozenset()) -> Iterator[_Field]:
    """Yield the fields to look at. Messages without any, such as the pieces of a prompt, are left out.

    `around` has the messages that contain this one, so that one which contains itself has an end.
    """
    around |= {descriptor.full_name}
    for field in descriptor.fields:
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        number = field.message_type.fields_by_name["value"] if is_map else field
        inner = number.message_type
        is_message = inner is not None and (inner.full_name in around or any(_fields_of(inner, around)))
        is_float = number.cpp_type in (number.CPPTYPE_FLOAT, number.CPPTYPE_DOUBLE)
        is_unsigned = number.cpp_type in (number.CPPTYPE_UINT32, number.CPPTYPE_UINT64)
        is_integer = is_unsigned or number.cpp_type in (number.CPPTYPE_INT32, number.CPPTYPE_INT64)
        high = _largest(field.name)
        if is_message or is_float or (is_integer and high < math.inf):
            yield _Field(
                name=field.name,
                low=0 if is_unsigned or (is_float and high < math.inf) else max(-high, -sys.float_info.max),
                high=min(high, sys.float_info.max),
                is_plain=not (is_message or is_map or field.is_repeated),
                is_message=is_message,
                is_repeated=field.is_repeated,
                is_map=is_map,
            )


def _largest(name: str) -> float:
    if name in _WIDER:
        return _WIDER[name]
    return next((high for end, high in _LARGEST.items() if name == end or name.endswith(f"_{end}")), math.inf)

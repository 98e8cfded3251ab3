"""Constraints by the names under which people write them: in the file, in the store, over HTTP. Pure."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from common.byte_sizes import BYTE_SIZE_TEXT, parse_byte_size
from common.durations import parse_go_duration_ms, whole_ms
from common.errors import InvalidRequest
from common.nearest import did_you_mean
from common.spec.layout import DRAFTED_TOKENS_MAX, FlashAttention
from scheduler.core.values.constraints import Constraints, FillPolicy, Shape

LIST_LENGTH_MAX = 256
REPLICAS_MAX = 64
PRIORITY_MAX = 10
SLOTS_MAX = 256
SHARE_MAX = 1_000_000  # far from where the sum of all leaves the range of the wire's numbers
FOREVER_MS = -1
_INT32_MAX = 2**31 - 1
_FLOAT_MAX = sys.float_info.max  # TOML knows inf and nan, and whole numbers of any length
# What the engine knows as types of the KV cache.
CACHE_TYPES = ("", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

# How people write a field, where that is not its own name.
_WRITTEN = {
    "context_tokens": "num_ctx",
    "batch_tokens": "num_batch",
    "threads": "num_thread",
    "keep_alive_ms": "keep_alive",
}


def _wrong(name: str, wanted: str) -> InvalidRequest:
    return InvalidRequest(f'"{name}" must be {wanted}', param=name)


def _whole(low: int, high: int = _INT32_MAX) -> Callable[[str, object], int]:
    def parse(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, f"an integer of at least {low}" + (f" and at most {high}" if high < _INT32_MAX else ""))
        return value

    return parse


def _boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a text")
    return value


def _names(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence) or len(value) > LIST_LENGTH_MAX:
        raise _wrong(name, f"a list of at most {LIST_LENGTH_MAX} names")
    if not all(isinstance(one, str) and one for one in value):
        raise _wrong(name, "a list of names")
    return tuple(value)


def _shares(name: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > LIST_LENGTH_MAX:
        raise _wrong(name, "a list of numbers")
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= SHARE_MAX for one in value):
        raise _wrong(name, f"a list of numbers from 0 to {SHARE_MAX}")
    return tuple(float(one) for one in value)


def _one_of(*values: str) -> Callable[[str, object], str]:
    def parse(name: str, value: object) -> str:
        if value not in values:
            raise _wrong(name, "one of " + ", ".join(one for one in values if one))
        return str(value)

    return parse


def parse_bytes(name: str, value: object) -> int:
    """Parse a number of bytes, or a text such as "8 GiB".

    Raises:
        InvalidRequest: neither.
    """
    try:
        return parse_byte_size(value)
    except ValueError as error:
        raise _wrong(name, BYTE_SIZE_TEXT) from error


def _bytes_by_device(name: str, value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, Mapping):
        return (("*", parse_bytes(name, value)),)
    if len(value) > LIST_LENGTH_MAX or not all(isinstance(label, str) and label for label in value):
        raise _wrong(name, "a size, or sizes by device")
    return tuple(sorted((label, parse_bytes(name, size)) for label, size in value.items()))


def _keep_alive_ms(name: str, value: object) -> int:
    if isinstance(value, str):
        try:
            duration_ms = parse_go_duration_ms(value)
        except ValueError as error:
            raise _wrong(name, "a number of seconds or a duration such as 10m") from error
    elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _FLOAT_MAX:
        duration_ms = whole_ms(abs(value) * 1000.0) * (-1 if value < 0 else 1)
    else:
        raise _wrong(name, "a number of seconds or a duration such as 10m")
    return FOREVER_MS if duration_ms < 0 else duration_ms


_PARSERS: Mapping[str, Callable[[str, object], Any]] = {
    "nodes": _names,
    "devices": _names,
    "backend": _text,
    "max_shape": lambda name, value: Shape(_one_of(*Shape)(name, value)),
    "policy": lambda name, value: FillPolicy(_one_of(*FillPolicy)(name, value)),
    "tensor_split": _shares,
    "num_gpu": _whole(0),
    "main_gpu": _whole(0),
    "require_gpu": _boolean,
    "max_bytes": _bytes_by_device,
    "replicas_min": _whole(0, REPLICAS_MAX),
    "replicas_max": _whole(1, REPLICAS_MAX),
    "pinned": _boolean,
    "priority": _whole(-PRIORITY_MAX, PRIORITY_MAX),
    "preload": _boolean,
    "keep_alive": _keep_alive_ms,
    "slots": _whole(0, SLOTS_MAX),
    "num_ctx": _whole(0),
    "num_batch": _whole(0),
    "num_thread": _whole(0),
    "cache_type_k": _one_of(*CACHE_TYPES),
    "cache_type_v": _one_of(*CACHE_TYPES),
    "flash_attention": lambda name, value: FlashAttention(_one_of(*FlashAttention)(name, value)),
    "use_mmap": _boolean,
    "draft": _text,
    "rollback_tokens": _whole(0, DRAFTED_TOKENS_MAX),
}
FIELD_NAMES = tuple(_PARSERS)
_FIELDS = {_WRITTEN.get(field.name, field.name): field for field in fields(Constraints)}


def parse_constraint(name: str, value: object) -> Any:
    """Parse one constraint that there is; raises as `parse_constraints`."""
    return _PARSERS[name](name, value)


def parse_constraints(written: Mapping[str, object]) -> Constraints:
    """Parse constraints as operators write them; a null counts as absent.

    Raises:
        InvalidRequest: an unknown name, a wrong type, out of range, or a contradiction; `param` is the name.
    """
    values: dict[str, Any] = {}
    for name, value in written.items():
        parser = _PARSERS.get(name)
        if parser is None:
            hint = did_you_mean(name[:64], FIELD_NAMES, else_say=f"there are {', '.join(FIELD_NAMES)}")
            raise InvalidRequest(f'"{name[:64]}" is no constraint{hint}', param=name[:64])
        if value is not None:
            values[_FIELDS[name].name] = parser(name, value)
    values.setdefault("replicas_max", default_replicas_max(values.get("replicas_min", 0)))
    return Constraints(**values)


def default_replicas_max(replicas_min: int) -> int:
    """Return the default of replicas_max: three replicas kept, without more, means at most three."""
    return max(1, replicas_min)


def written_constraints(constraints: Constraints) -> dict[str, object]:
    """Return the constraints that were set, under the names in which people write them; defaults are left out."""
    written: dict[str, object] = {}
    for name, field in _FIELDS.items():
        value = getattr(constraints, field.name)
        assert field.default is not MISSING, "every constraint has a default"
        if value != field.default:
            written[name] = _plain(field.name, value)
    if constraints.replicas_max == default_replicas_max(constraints.replicas_min):
        written.pop("replicas_max", None)
    return written


def _plain(field: str, value: Any) -> object:
    match field:
        case "max_bytes":
            return dict(value)
        case "keep_alive_ms":
            return value / 1000 if value >= 0 else -1
        case _:
            return list(value) if isinstance(value, tuple) else value

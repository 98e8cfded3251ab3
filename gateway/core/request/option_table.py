"""The options of a request: their types, ranges and error texts, in one table; and those that say how to load."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from common.errors import InvalidRequest
from common.spec import sampling
from common.spec.layout import DRAFTED_TOKENS_MAX
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from common.spec.rules import OptionKind, Rule
from common.spec.sampling import INT32_MAX

OptionValue = int | float | bool | str | tuple[str, ...] | dict[int, float]
STOP_STRINGS_MAX = 16
STOP_BYTES_MAX = 256
LOGIT_BIAS_MAX = 1024
_INT64_MAX = 2**63 - 1
_TOKEN_ID_MAX = 2**32 - 1
SPECULATIVE = ("auto", "on", "off")


def _whole(low: float, high: float, text: str) -> Rule:
    return Rule(kind=OptionKind.INTEGER, low=low, high=high, range_text=text)


SAMPLING_RULES: Mapping[str, Rule] = {
    **sampling.RULES,
    "seed": _whole(-_INT64_MAX - 1, _INT64_MAX, "a 64-bit integer"),
    "num_predict": _whole(-2, INT32_MAX, "at least -2"),
    "num_keep": _whole(-1, INT32_MAX, "between -1 and num_ctx"),
    "stop": Rule(kind=OptionKind.STRINGS),
    "num_ctx": _whole(4, math.inf, "at least 4"),
    "cache_prompt": Rule(kind=OptionKind.BOOLEAN),
    "require_gpu": Rule(kind=OptionKind.BOOLEAN),
    "speculative": Rule(kind=OptionKind.CHOICE, range_text="auto, on or off", choices=SPECULATIVE),
    "speculative_tokens": _whole(0, DRAFTED_TOKENS_MAX, f"between 0 and {DRAFTED_TOKENS_MAX}"),
    "think_budget": _whole(0, INT32_MAX, "at least 0"),
}
# Load options of a replica; named in the x-puna-ignored header if the caller may not set them.
PLACEMENT_RULES: Mapping[str, Rule] = {
    "num_batch": _whole(1, INT32_MAX, "at least 1"),
    "num_gpu": _whole(-1, INT32_MAX, "at least -1"),
    "main_gpu": _whole(0, INT32_MAX, "at least 0"),
    "num_thread": _whole(0, INT32_MAX, "at least 0"),
    "use_mmap": Rule(kind=OptionKind.BOOLEAN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Options that passed the table. `ignored` are those that the caller may not set, `unknown` are in no table."""

    values: Mapping[str, OptionValue]
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def check_options(options: Mapping[str, object], *, may_set_load: bool = True) -> CheckedOptions:
    """Check types and ranges; null means absent. `may_set_load`: the caller may say how a replica is loaded.

    Raises:
        InvalidRequest: wrong type or out of range; the text names the option.
    """
    values: dict[str, OptionValue] = {}
    ignored: list[str] = []
    unknown: list[str] = []
    for name, value in options.items():
        if value is None:
            continue
        if rule := SAMPLING_RULES.get(name):
            values[name] = check_option(name, value, rule)
        elif rule := PLACEMENT_RULES.get(name):
            checked = check_option(name, value, rule)
            if may_set_load:
                values[name] = checked
            else:
                ignored.append(name)
        else:
            unknown.append(name)
    return CheckedOptions(values=values, ignored=tuple(ignored), unknown=tuple(unknown))


def check_option(name: str, value: object, rule: Rule) -> OptionValue:
    """Check one value against its rule.

    Raises:
        InvalidRequest: wrong type or out of range.
    """
    match rule.kind:
        case OptionKind.INTEGER:
            return _in_range(name, _integer(name, value), rule)
        case OptionKind.FLOAT:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong_type(name, OptionKind.FLOAT)
            return _in_range(name, float(value), rule)
        case OptionKind.BOOLEAN:
            if not isinstance(value, bool):
                raise _wrong_type(name, OptionKind.BOOLEAN)
            return value
        case OptionKind.STRINGS:
            return check_stop(name, value)
        case OptionKind.BIAS:
            return _bias(name, value)
        case OptionKind.CHOICE:
            return _choice(name, value, rule)


def check_stop(name: str, value: object) -> tuple[str, ...]:
    """Check a list of at most 16 strings of 1 to 256 bytes.

    Raises:
        InvalidRequest: no list, another type inside, too many, or one of a wrong length.
    """
    if not isinstance(value, list | tuple):
        raise _wrong_type(name, OptionKind.STRINGS)
    if not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f'option "{name}" must be of an array of strings', param=name)
    if len(value) > STOP_STRINGS_MAX:
        raise InvalidRequest(f'option "{name}" must have at most {STOP_STRINGS_MAX} strings', param=name)
    if not all(1 <= len(item.encode()) <= STOP_BYTES_MAX for item in value):
        raise InvalidRequest(f'option "{name}" must have strings of 1 to {STOP_BYTES_MAX} bytes', param=name)
    return tuple(value)


def whole_number(value: object) -> int | None:
    """Return the integer that a JSON number means (5.0 counts as 5), or None if it is none; a boolean is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None


def _integer(name: str, value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise _wrong_type(name, OptionKind.INTEGER)
    return number


def _in_range(name: str, value: int | float, rule: Rule) -> int | float:
    if not rule.allows(value):
        raise out_of_range(name, rule)
    return value


def _choice(name: str, value: object, rule: Rule) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, OptionKind.CHOICE)
    if value not in rule.choices:
        raise out_of_range(name, rule)
    return value


def _bias(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, dict):
        raise _wrong_type(name, OptionKind.BIAS)
    if len(value) > LOGIT_BIAS_MAX:
        raise InvalidRequest(f'option "{name}" must have at most {LOGIT_BIAS_MAX} entries', param=name)
    bias: dict[int, float] = {}
    for key, number in value.items():
        text = str(key)
        if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= _TOKEN_ID_MAX):
            raise InvalidRequest(f'option "{name}" must have token ids as keys', param=name)
        if isinstance(number, bool) or not isinstance(number, int | float) or not -100 <= number <= 100:
            raise InvalidRequest(f'option "{name}" must have values between -100 and 100', param=name)
        bias[int(text)] = float(number)
    return bias


def out_of_range(name: str, rule: Rule) -> InvalidRequest:
    """Build the error that names the range."""
    return InvalidRequest(f'option "{name}" must be {rule.range_text}', param=name)


def _wrong_type(name: str, kind: OptionKind) -> InvalidRequest:
    return InvalidRequest(f'option "{name}" must be of type {kind.value}', param=name)


def load_options(options: Mapping[str, OptionValue]) -> LoadOptions:
    """Pick the load options out of checked options. num_gpu below 0 means "as many as fit", as it does for Ollama."""
    num_gpu = whole_number(options.get("num_gpu"))
    return LoadOptions(
        require_gpu=options.get("require_gpu") is True,
        num_gpu=num_gpu if num_gpu is not None and num_gpu >= 0 else None,
        main_gpu=whole_number(options.get("main_gpu")),
        batch_tokens=whole_number(options.get("num_batch")) or 0,
        threads=whole_number(options.get("num_thread")) or 0,
        use_mmap=use_mmap if isinstance(use_mmap := options.get("use_mmap"), bool) else None,
    )


def over(requested: LoadOptions, own: LoadOptions) -> LoadOptions:
    """Merge a request's load options over those of its model."""
    values = {one.name: getattr(requested, one.name) for one in fields(requested)}
    return replace(own, **{name: value for name, value in values.items() if value != getattr(NO_LOAD_OPTIONS, name)})

"""Changes that `/set` makes to a dialogue's options. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cli.core.conversation import RunOptions
from cli.core.parameter_values import parameter_values
from common.nearest import did_you_mean
from gateway.core.request.option_table import PLACEMENT_RULES, SAMPLING_RULES

_ON_OFF = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_EFFORTS = ("low", "medium", "high", "max")
SET_TEXT = "/set system TEXT, think on|off, format json|FILE|off, keep_alive 10m, verbose on|off, or OPTION VALUE"


def split_setting(rest: str) -> tuple[str, str]:
    """Name and value of `/set NAME VALUE`; Ollama's `/set parameter NAME VALUE` is the same."""
    name, _, value = rest.partition(" ")
    if name == "parameter":
        name, _, value = value.strip().partition(" ")
    return name.lower(), value.strip().removeprefix('"""').removesuffix('"""')


def changed(options: RunOptions, name: str, value: str) -> RunOptions:
    """With one setting changed; an empty value forgets it. `format` is not for here: it reads files.

    Raises:
        ValueError: there is no such setting, or not such a value.
    """
    match name:
        case "system":
            return replace(options, system=value or None)
        case "keep_alive":
            return replace(options, keep_alive=value or None)
        case "think":
            return replace(options, think=_thinking(value))
    if name not in SAMPLING_RULES and name not in PLACEMENT_RULES:
        known = {*SAMPLING_RULES, *PLACEMENT_RULES, "system", "keep_alive", "think", "format", "verbose"}
        raise ValueError(f"there is no setting {name[:40]!r}{did_you_mean(name, known, else_say=SET_TEXT)}")
    others = {key: one for key, one in options.options.items() if key != name}
    return replace(options, options=others | (parameter_values([(name, value)]) if value else {}))


def switch(name: str, value: str) -> bool:
    """Parse "on" and "off" as True and False.

    Raises:
        ValueError: neither.
    """
    if value.lower() not in _ON_OFF:
        raise ValueError(f"{name} is on or off, not {value[:40]!r}")
    return _ON_OFF[value.lower()]


def setting_rows(model: str, options: RunOptions, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the values in effect that differ from the model's defaults."""
    yield "model", model
    rows: dict[str, Any] = {
        "system": options.system,
        "think": options.think,
        "format": "schema" if isinstance(options.answer_format, dict) else options.answer_format,
        "keep_alive": options.keep_alive,
        **options.options,
        "verbose": verbose or None,
    }
    for name, value in rows.items():
        if value is not None:
            yield name, " ".join(str(value).split())


def _thinking(value: str) -> bool | str | None:
    if not value:
        return None
    return value.lower() if value.lower() in _EFFORTS else switch("think", value)

"""Effort of reasoning, in the words of each dialect. Pure."""

from common.errors import InvalidRequest
from gateway.core.request.answers import Think

# OpenAI's levels of effort.
_EFFORTS = {
    "none": Think.OFF,
    "minimal": Think.LOW,
    "low": Think.LOW,
    "medium": Think.MEDIUM,
    "high": Think.HIGH,
    "xhigh": Think.MAX,
    "max": Think.MAX,
}
_THINK_TEXT = 'invalid think value: "{}" (must be "high", "medium", "low", "max", true, or false)'


def parse_think(value: object, effort: str | None = None, *, param: str = "") -> Think | None:
    """Parse a `think` field; without one the level of effort in the field `param`, if there is any.

    Raises:
        InvalidRequest: neither a boolean nor one of the levels.
    """
    match value:
        case None:
            return None if effort is None else _parse_effort(effort, param)
        case True | False:
            return Think.ON if value else Think.OFF
        case "low" | "medium" | "high" | "max":
            return Think(value)
        case _:
            raise InvalidRequest(_THINK_TEXT.format(str(value)[:64]), param="think")


def _parse_effort(effort: str, param: str) -> Think:
    if effort not in _EFFORTS:
        raise InvalidRequest(f"{param} must be one of {', '.join(_EFFORTS)}", param=param)
    return _EFFORTS[effort]

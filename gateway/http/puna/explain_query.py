"""The question of GET /puna/v1/explain, from its query."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import InvalidRequest
from gateway.http.endpoint.fields import check_names
from gateway.http.puna.placement_bodies import SLOTS_MAX

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_YES_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OPTIONS = ("num_ctx", "num_gpu", "main_gpu")
_KNOWN = ("model", *_OPTIONS, "require_gpu", "slots", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainQuestion:
    """Parsed query. `options` are checked as those of a request's body are."""

    model: str
    options: Mapping[str, object]
    last: bool
    slots: int | None


def explain_question(query: Mapping[str, str]) -> ExplainQuestion:
    """Parse a query. A misspelt parameter is refused: to ignore it would answer another question.

    Raises:
        InvalidRequest: a parameter that there is not, or a value that it does not take; `param` is its name.
    """
    check_names(query, _KNOWN, "parameter")
    if not query.get("model"):
        raise InvalidRequest("model is required", param="model")
    options: dict[str, object] = {"require_gpu": _is_yes(query, "require_gpu")}
    for name in _OPTIONS:
        if (text := query.get(name)) is not None:
            options[name] = int(text) if _WHOLE.fullmatch(text) else text
    slots = query.get("slots")
    if slots is not None and not (_WHOLE.fullmatch(slots) and 1 <= int(slots) <= SLOTS_MAX):
        raise InvalidRequest(f"slots must be a whole number from 1 to {SLOTS_MAX}", param="slots")
    return ExplainQuestion(
        model=query["model"],
        options=options,
        last=_is_yes(query, "last"),
        slots=int(slots) if slots is not None else None,
    )


def _is_yes(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name)
    if text is None:
        return False
    if (found := _YES_NO.get(text.lower())) is None:
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return found

"""Field types of request bodies: strict, with texts that people understand, and their JSON schema.

A boolean is no integer, "5" is no number, 5.0 counts as 5, null means absent.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from common.errors import InvalidRequest
from common.nearest import did_you_mean
from gateway import metrics
from gateway.core.request.option_table import whole_number

_TYPE_NAMES = {
    "string_type": "string",
    "bool_type": "boolean",
    "int_type": "integer",
    "float_type": "number",
    "list_type": "array",
    "tuple_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
}


# Fields of AnswerBody, and of every body that is one.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")
_NAMES = ("model", "name", "source", "destination", "from")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Body(BaseModel):
    """Base of bodies: strict types, unknown fields ignored, null is absent."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, dict) else data


class OwnBody(Body):
    """Base of bodies that no client of another server sends: one with an unknown field is refused.

    If it were ignored, a misspelt field would be answered as if it had not been sent.
    """

    model_config = ConfigDict(extra="forbid")
    field_noun: ClassVar[str] = "field"  # what its fields are to people


class AnswerBody(Body):
    """Base of bodies that ask for an answer in OpenAI's or Anthropic's dialect: Puna's extensions to all of them."""

    options: dict[str, Any] = Field(default_factory=dict, description="Puna: native options, see docs/api.md")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")
    truncate: bool = Field(default=False, description="Puna: cut a prompt that is too long")
    shift: bool = Field(default=False, description="Puna: forget the middle of a full context and go on")
    top_k: Any = Field(default=None, description="Puna: as the option")
    min_p: Any = Field(default=None, description="Puna: as the option")
    repeat_penalty: Any = Field(default=None, description="Puna: as the option")

    def sampling(self) -> dict[str, object]:
        """Return the fields that are named as their options."""
        return {name: getattr(self, name) for name in _SAMPLING}


BodyType = TypeVar("BodyType", bound=Body)


def check_names(names: Iterable[object], known: Collection[str], noun: str) -> None:
    """Refuse the first name that there is not.

    Raises:
        InvalidRequest: `param` is that name; the text has the closest known name.
    """
    for name in names:
        if name not in known:
            wrong = str(name)[:64]
            raise InvalidRequest(f'"{wrong}" is no {noun}{did_you_mean(wrong, known)}', param=wrong)


@dataclass(frozen=True, slots=True)
class Between:
    """A number in [low, high], for `Annotated`. `whole`: an integer. `unlimited`: this number is allowed, too."""

    low: float
    high: float
    whole: bool = False
    unlimited: int | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the check for pydantic."""
        return core_schema.no_info_plain_validator_function(self.checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the field for clients."""
        kind = "integer" if self.whole else "number"
        described: JsonSchemaValue = {"type": kind, "minimum": self.low, "maximum": self.high}
        return described if self.unlimited is None else {"anyOf": [described, {"const": self.unlimited}]}

    def checked(self, value: object) -> float:
        """Check the number.

        Raises:
            PydanticCustomError: another type, or out of range.
        """
        number = whole_number(value) if self.whole else value
        if number is None or isinstance(number, bool) or not isinstance(number, int | float):
            raise PydanticCustomError("type", "must be of type " + ("integer" if self.whole else "number"))
        if not self.low <= number <= self.high and (self.unlimited is None or number != self.unlimited):
            wanted = f"between {self.low} and {self.high}"
            wanted += "" if self.unlimited is None else f", or {self.unlimited} for no limit"
            raise PydanticCustomError("range", "must be {wanted}", {"wanted": wanted})
        return number


def validated(body_type: type[BodyType], data: object) -> BodyType:
    """Validate a body and return it as its type.

    Raises:
        InvalidRequest: names the first field at fault, as `param`, too.
    """
    if not isinstance(data, dict):
        raise InvalidRequest("the request body must be a JSON object")
    if issubclass(body_type, OwnBody):
        check_names(data, body_type.model_fields, body_type.field_noun)
    for name in _NAMES:
        text = data.get(name)
        # Such a name reaches logs and error texts, and no model can have it.
        if isinstance(text, str) and _CONTROL.search(text):
            raise InvalidRequest(f"{name} must not have control characters", param=name)
    names = {field.alias or name for name, field in body_type.model_fields.items()}
    metrics.IGNORED_FIELDS.inc(sum(1 for key in data if key not in names))
    try:
        return body_type.model_validate(data)
    except ValidationError as error:
        raise _first_fault(error) from error


def _first_fault(error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False, include_input=False)[0]
    param = _path(fault["loc"])
    match fault["type"]:
        case "missing":
            text = f"{param} is required"
        case kind if kind in _TYPE_NAMES:
            text = f"{param} must be of type {_TYPE_NAMES[kind]}"
        case "type" | "range":
            text = f"{param} {fault['msg']}"
        case _:
            text = f"{param}: {fault['msg']}"
    return InvalidRequest(text, param=param)


def _path(location: tuple[int | str, ...]) -> str:
    """`messages[0].role` of its parts."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path

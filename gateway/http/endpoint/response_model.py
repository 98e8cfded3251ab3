"""Bodies of answers, as the OpenAPI document describes them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# vLLM's field and value. The reason beside it stays "length": clients that check reasons know no other.
REPETITION_DETECTED = "repetition_detected"
StopReason = Annotated[Literal["repetition_detected"], Field(description="The model repeated one token without end")]


class ResponseModel(BaseModel):
    """Base of answers: a field that is not described here is not sent. What has no default is always there."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class DebugFields(ResponseModel):
    """Fields that the header x-puna-debug adds: the place of an answer, and its waits."""

    placement: str | None
    node: str | None
    queue_ms: float | None
    load_ms: float | None
    resumes: int


class LogprobAlternative(ResponseModel):
    """A token, and how likely it was."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobEntry(LogprobAlternative):
    """A token of the answer, and what else it might have been."""

    top_logprobs: list[LogprobAlternative]

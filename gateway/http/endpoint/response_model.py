"""Bodies of answers, as the OpenAPI document describes them."""

from pydantic import BaseModel, ConfigDict


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

"""Bodies of /puna/v1/keys."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.keys.key_file import CONTEXT_TOKENS_MIN, WEIGHT_MAX
from gateway.http.endpoint.fields import Between, OwnBody
from gateway.http.endpoint.response_model import ResponseModel

_WHOLE = Between(1, 2**53, whole=True)


class KeyBody(OwnBody):
    """A key that is to be made (POST /puna/v1/keys)."""

    owner: str = Field(description="Owner of the key; one has at most two valid keys")
    tenant: str | None = Field(default=None, description="Tenant that shares slots with others; unset: the owner")
    scopes: list[str] = Field(
        default_factory=lambda: ["infer", "embed", "models:read"],
        max_length=16,
        description="infer, embed, models:read, models:write, metrics, admin:keys, admin:cluster",
    )
    models: list[str] = Field(default_factory=list, max_length=256, description="Only these; none: every model")
    networks: list[str] = Field(default_factory=list, max_length=64, description="Only from there; none: everywhere")
    band: str = Field(default="normal", description="Priority: high, normal or low")
    weight: Annotated[int, Between(1, WEIGHT_MAX, whole=True)] = 1
    requests_per_minute: Annotated[int, _WHOLE] | None = None
    tokens_per_minute: Annotated[int, _WHOLE] | None = None
    tokens_per_day: Annotated[int, _WHOLE] | None = None
    concurrency: Annotated[int, _WHOLE] | None = None
    context_tokens: Annotated[int, Between(CONTEXT_TOKENS_MIN, 2**31 - 1, whole=True)] | None = Field(
        default=None, description="Longest context of a request; unset: the replica's"
    )
    expires: str | None = Field(default=None, description='How long it is good, as in "720h"; unset: for ever')


class KeyObject(ResponseModel):
    """A key as it is shown. Its text comes once, from POST."""

    key: str | None = Field(default=None, description="The key itself; only in the answer that made it")
    id: str
    owner: str
    tenant: str
    scopes: list[str]
    models: list[str]
    networks: list[str]
    band: str
    weight: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    context_tokens: int | None = None
    created: int = Field(description="Seconds since 1970")
    expires: int | None = None
    revoked: int | None = None
    last_used: int | None = None
    state: str = Field(description="active, expired or revoked")
    source: str = Field(description="file, or api if it was made here")


class KeyList(ResponseModel):
    """Every key that the caller may see (GET /puna/v1/keys)."""

    keys: list[KeyObject]


def shown_key(fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a key's fields without its secret's digest."""
    return {name: value for name, value in fields.items() if name != "digest"} | more

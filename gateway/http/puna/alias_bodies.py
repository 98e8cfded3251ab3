"""Second names of models over HTTP."""

from pydantic import Field

from gateway.http.endpoint.answer_body import Answer
from gateway.http.endpoint.fields import OwnBody


class AliasBody(OwnBody):
    """PUT /puna/v1/aliases/{alias}."""

    model: str = Field(default="", description="The model that the name shall point to. Required.")


class AliasAnswer(Answer):
    """One alias."""

    alias: str
    model: str = Field(description="The model that it points to")
    exists: bool = Field(description="False: no node has the model any more")


class AliasList(Answer):
    """GET /puna/v1/aliases."""

    aliases: list[AliasAnswer]


class AliasRemoved(Answer):
    """DELETE /puna/v1/aliases/{alias}."""

    alias: str
    was_set: bool

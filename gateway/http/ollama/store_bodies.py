"""Bodies of the routes that change what models there are."""

from typing import Any

from pydantic import Field

from gateway.http.endpoint.fields import Body
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.ollama.bodies import OllamaMessage


class NamedBody(Body):
    """`name` is the older spelling of `model`."""

    model: str = ""
    name: str = ""


class PullBody(NamedBody):
    """POST /api/pull. User and password, which older clients send, are ignored."""

    insecure: bool = Field(default=False, description="Plain HTTP, for registries that are allowed it")
    stream: bool = True


class CreateBody(NamedBody):
    """POST /api/create."""

    base: str = Field(default="", alias="from", description="A model that this one is made from")
    files: dict[str, str] = Field(
        default_factory=dict, description="File names of GGUFs and the digests of their blobs, instead of `from`"
    )
    adapters: dict[str, str] = Field(default_factory=dict, description="GGUF adapters, likewise")
    template: str | None = Field(default=None, description="Jinja is run, Go is shown")
    system: str | None = None
    license: Any = Field(default=None, description="A text, or a list of texts")
    parameters: dict[str, Any] = Field(default_factory=dict, description="Option values; see docs/api.md")
    messages: list[OllamaMessage] = Field(default_factory=list, description="Every conversation begins with them")
    renderer: str = ""
    parser: str = Field(default="", description="Names the family that tool calls are read as")
    quantize: str = Field(default="", description="Not supported")
    stream: bool = True


class CopyBody(Body):
    """POST /api/copy."""

    source: str = ""
    destination: str = ""


class DeleteBody(NamedBody):
    """DELETE /api/delete."""


class StatusLine(ResponseModel):
    """One line of what a pull or create does; the last has the status "success"."""

    status: str
    digest: str = ""
    total: int = Field(default=0, description="Bytes")
    completed: int = 0

"""Bodies of Puna's own pages about what is loaded, what is wanted, and why."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from common.byte_sizes import BYTES_MAX, parse_byte_size
from gateway.core.request.option_table import whole_number
from gateway.http.endpoint.fields import Between, OwnBody

SLOTS_MAX = 256
SHARE_MAX = 1_000_000  # far from where the sum of all leaves the range of the wire's numbers


class ByteSize:
    """Bytes, for `Annotated`: a number of them, or a size in words as the file of constraints has them."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the check for pydantic."""
        return core_schema.no_info_plain_validator_function(self.checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the field for clients."""
        return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": BYTES_MAX}, {"type": "string"}]}

    def checked(self, value: object) -> int:
        """Check the number of bytes.

        Raises:
            PydanticCustomError: it says none.
        """
        number = whole_number(value)
        try:
            return parse_byte_size(value if number is None else number)
        except ValueError as error:
            raise PydanticCustomError("type", "{text}", {"text": str(error)}) from error


class ConstraintsBody(OwnBody):
    """Constraints of a model (PUT /puna/v1/placements/{model}); a field that is left out sets nothing."""

    field_noun: ClassVar[str] = "constraint"

    nodes: list[str] = Field(default_factory=list, max_length=256, description="Node ids; none: any")
    devices: list[str] = Field(
        default_factory=list, max_length=256, description='Device ids or names, alone or behind "node/"; none: any'
    )
    backend: str = Field(default="", description="CUDA, CPU, …; empty: any")
    max_shape: str = Field(
        default="",
        description="Slowest acceptable: one_device, one_node, nodes, experts_on_host, partial, cpu",
    )
    policy: str = Field(default="", description="pack or spread")
    tensor_split: list[Annotated[float, Between(0, SHARE_MAX)]] = Field(
        default_factory=list, max_length=256, description="Shares of the layers, one for each of `devices`"
    )
    num_gpu: Annotated[int, Between(0, 2**31 - 1, whole=True)] | None = None
    main_gpu: Annotated[int, Between(0, 2**31 - 1, whole=True)] | None = None
    require_gpu: bool = False
    max_bytes: dict[str, Annotated[int, ByteSize()]] = Field(
        default_factory=dict,
        description='Most that the model may take, by device, in bytes or as "8GiB"; "*": on each but the CPU',
    )
    replicas_min: Annotated[int, Between(0, 64, whole=True)] = 0
    replicas_max: Annotated[int, Between(1, 64, whole=True)] | None = Field(
        default=None, description="Unset: 1, or replicas_min"
    )
    pinned: bool = False
    priority: Annotated[int, Between(-10, 10, whole=True)] = 0
    preload: bool = False
    keep_alive: Any = Field(default=None, description="A number of seconds or a duration such as 10m; negative: ever")
    slots: Annotated[int, Between(0, SLOTS_MAX, whole=True)] = 0
    num_ctx: Annotated[int, Between(0, 2**31 - 1, whole=True)] = 0
    num_batch: Annotated[int, Between(0, 2**31 - 1, whole=True)] = 0
    num_thread: Annotated[int, Between(0, 2**31 - 1, whole=True)] = 0
    cache_type_k: str = ""
    cache_type_v: str = ""
    flash_attention: str = Field(default="", description="auto, on or off")
    use_mmap: bool | None = None


class ExplainBody(OwnBody):
    """A question (POST /puna/v1/explain)."""

    model: str
    options: dict[str, Any] = Field(default_factory=dict, description="num_ctx, num_gpu, main_gpu, require_gpu, …")
    last: bool = Field(default=False, description="The last decision that was taken, not a hypothetical one")
    slots: Annotated[int, Between(1, SLOTS_MAX, whole=True)] | None = Field(
        default=None, description="Unset: automatic"
    )


class LoadBody(OwnBody):
    """POST /puna/v1/load."""

    model: str
    keep_alive: Any = None
    options: dict[str, Any] = Field(default_factory=dict)


class ClearDeviceBody(OwnBody):
    """POST /puna/v1/devices/clear."""

    device: str = Field(description='Id or name, alone or behind "node/"')


class UnloadBody(OwnBody):
    """POST /puna/v1/unload."""

    model: str

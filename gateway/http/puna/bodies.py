"""Bodies and answers of Puna's own routes."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from common.byte_sizes import BYTES_MAX, parse_byte_size
from common.spec.layout import DRAFTED_TOKENS_MAX
from gateway.core.request.option_table import whole_number
from gateway.http.endpoint.fields import Between, OwnBody
from gateway.http.endpoint.response_model import ResponseModel

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
    draft: str = Field(default="", description="Name of a smaller model that guesses its tokens")
    rollback_tokens: Annotated[int, Between(0, DRAFTED_TOKENS_MAX, whole=True)] = Field(
        default=0, description="How far a recurrent state can go back behind wrong guesses; a copy of it for each token"
    )


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


class MoveBody(OwnBody):
    """POST /puna/v1/move."""

    model: str
    node: str = Field(min_length=1, max_length=128, description="Where its replica goes")


class ClearDeviceBody(OwnBody):
    """POST /puna/v1/devices/clear."""

    device: str = Field(description='Id or name, alone or behind "node/"')


class UnloadBody(OwnBody):
    """POST /puna/v1/unload."""

    model: str


class LayoutRow(ResponseModel):
    """Layers of a replica on one device."""

    device: str
    name: str
    layers: int


class PlacementAnswer(ResponseModel):
    """One replica, with its load."""

    id: str
    generation: int
    model: str = Field(description="The name that was asked for, else the first of `names`")
    names: list[str] = Field(description="Of its file, as far as the caller may use them")
    digest: str
    node: str
    state: str
    fraction: float | None = Field(description="Progress of its load; null: it is loaded")
    reason: str | None
    layout: list[LayoutRow]
    measured_bytes: dict[str, int] = Field(description="By device")
    host_bytes: int
    context_length: int
    slots_total: int
    slots_busy: int
    queued: int
    reachable: bool
    expires_at_unix_ms: int | None


class ConstraintsAnswer(ResponseModel):
    """Constraints that operators set for a model. Unset ones are left out of `constraints` and `defaults`."""

    model: str
    from_file: bool
    constraints: dict[str, Any]
    defaults: dict[str, Any]


class ConstraintsAndPlacements(ConstraintsAnswer):
    """The same, and the model's replicas."""

    placements: list[PlacementAnswer]


class PlacementList(ResponseModel):
    """GET /puna/v1/placements."""

    placements: list[PlacementAnswer]
    models: list[ConstraintsAnswer] | None = Field(description="Null: there is no scheduler to say")


class Forgotten(ResponseModel):
    """DELETE /puna/v1/placements/{model}."""

    model: str
    was_set: bool


class Unloaded(ResponseModel):
    """POST /puna/v1/unload: the number of replicas that will stop."""

    model: str
    replicas: int


class ExplainedConstraint(ResponseModel):
    """Constraint that the decision obeys, and its owner."""

    name: str
    value: str
    origin: str


class BorrowingPlacement(ResponseModel):
    """A placement of another node that a device is lent to."""

    placement: str
    model: str
    node: str


class ExplainedDevice(ResponseModel):
    """Bytes that a candidate needs of a device, and the bytes that it has."""

    node: str
    id: str
    name: str
    layers: int
    need_bytes: int
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int
    projector_bytes: int
    reserve_bytes: int
    reserve_source: str
    margin_bytes: int
    available_bytes: int
    free_bytes: int
    promised_bytes: int
    overhead_bytes: int
    free_source: str
    free_age_ms: int
    total_bytes: int
    backoff_bytes: int = Field(description="Of `free_bytes`: left alone, as stale or after an allocation failed there")
    limit: str = Field(
        description="Limit of the available bytes: free, promised, max_bytes, model_max_bytes, server_in_use"
    )
    max_bytes: int | None = Field(description="Of the limit of this name, else the operator's for the device")
    pool: str | None = Field(description="Memory pool of these figures; null: the device's own memory")
    lent_to: list[BorrowingPlacement]
    speed_bytes_s: int | None = Field(description="That ranks the device")
    speed_source: str | None = Field(description="replicas, like devices or probe copy")


class ExplainedCandidate(ResponseModel):
    """One way to place the model, and what became of it."""

    node: str
    shape: str
    verdict: str
    reason: str
    slots: int
    context_length: int
    layers: int
    seconds_per_token: float | None
    estimated: bool
    devices: list[ExplainedDevice]


class Victim(ResponseModel):
    """A replica that would go."""

    placement: str
    model: str
    node: str
    loss: float


class ExplainedShare(ResponseModel):
    """Number of layers on a device."""

    device: str
    layers: int


class ExplainedLayout(ResponseModel):
    """Layout that was decided."""

    devices: list[ExplainedShare]
    context_length: int
    slots: int
    num_batch: int
    cache_type_k: str
    cache_type_v: str
    pipeline: bool


class ExplainedSpeculation(ResponseModel):
    """Evaluation of guessed tokens by a replica, and the measured figures that decide about it."""

    off_reason: str = Field(description="Reason why no guess is ever evaluated; empty: requests may ask for it")
    drafted_tokens: int
    accepted_tokens: int
    drafters_off: int
    call_ms: float = Field(description="Of a decode call with one input; 0: durations are not known yet")
    draft_ms: float = Field(description="Of one token that the draft model guesses; 0: there is none")
    draft_off_reason: str = Field(description="Reason why the draft model is not used; empty: it is, or there is none")
    paying_share: float | None = Field(
        description="Smallest share of right guesses that pays for one sequence; null: none does, or it is not known"
    )


class ExplainedReplica(ResponseModel):
    """A replica that there is."""

    placement: str
    node: str
    devices: list[str]
    context_length: int
    predicted_bytes: int
    allocated_bytes: int
    pinned: bool
    speculation: ExplainedSpeculation | None = Field(description="null: its runner did not report it")


class CrashRowAnswer(ResponseModel):
    """Crashes in a row of one model on one node, none of whose replicas had served for a minute."""

    model: str
    node: str
    crashes: int
    last_at_unix_ms: int
    retry_at_unix_ms: int = Field(description="The model is not loaded there before; past: the next load may")
    excluded_until_unix_ms: int | None = Field(
        description="Other nodes that can take the model are preferred until then; null: they are not"
    )
    error: str = Field(description="End of the last one, with the engine's last error line")


class ExplanationAnswer(ResponseModel):
    """/puna/v1/explain."""

    model: str
    digest: str
    hypothetical: bool
    age_s: float
    outcome: str
    message: str
    waits_for: str
    constraints: list[ExplainedConstraint]
    candidates: list[ExplainedCandidate]
    victims: list[Victim]
    layout: ExplainedLayout | None
    would_fit: list[str]
    measure_rounds: int
    attempts: int
    replicas: list[ExplainedReplica]
    crash_rows: list[CrashRowAnswer] = Field(
        description="Nodes where its replicas crash; POST /puna/v1/load forgets them"
    )


class HealthAnswer(ResponseModel):
    """GET /healthz, /health and /v1/health."""

    status: str


class Readiness(ResponseModel):
    """GET /readyz: `ok`, or with 503 `draining` or `no_routes`."""

    status: str
    waits_for: str | None = Field(
        default=None, description="With `ok`, while nothing is loaded: the part that is missing before a model can load"
    )


class ScrapeGroup(ResponseModel):
    """Pages of one process, and the labels that are added to them."""

    targets: list[str]
    labels: dict[str, str]


class ScrapeTargets(RootModel[list[ScrapeGroup]]):
    """GET /puna/v1/targets, in the format of Prometheus' HTTP service discovery."""


class SettingRow(ResponseModel):
    """One setting as it is in effect."""

    name: str
    value: str
    source: str
    variable: str
    effect: str


class ConfigAnswer(ResponseModel):
    """GET /puna/v1/config."""

    process: str
    version: str
    settings: list[SettingRow]


class WhoAmIAnswer(ResponseModel):
    """GET /puna/v1/whoami. Without keys every caller has every scope."""

    keys: bool = Field(description="True: the gateway requires keys")
    key: str | None = Field(description="The id of the caller's key")
    owner: str | None
    scopes: list[str]
    models: list[str] | None = Field(description="Null: every model")
    version: str


class QueueReport(ResponseModel):
    """Requests that wait for one model."""

    model: str
    depth: int
    oldest_wait_s: float
    drain_rate: float | None = Field(description="Answers that end a second; null: not known yet")


class QueueList(ResponseModel):
    """GET /puna/v1/queue."""

    models: list[QueueReport]


class Memory(ResponseModel):
    """The memory of a machine, in bytes."""

    total: int
    free: int
    source: str
    swap_total: int = Field(description="Within the limits of cgroups; not part of `total` unless `source` names swap")
    swap_free: int


class StoreRoom(ResponseModel):
    """The disk that models lie on."""

    free_bytes: int
    total_bytes: int


class StatesTier(ResponseModel):
    """Saved conversations of a node in one place."""

    tier: str = Field(description="ram or disk")
    bytes: int
    max_bytes: int = Field(description="0: it is turned off")
    states: int


class Held(ResponseModel):
    """Bytes of one placement on a device."""

    placement: str
    model: str
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int


class DeviceVitals(ResponseModel):
    """Condition of a card as its driver reports it; null: it does not say."""

    utilization: float | None
    temperature_c: int | None
    power_w: float | None
    throttled: list[str] = Field(description="Why its clocks are held down: power, thermal, power_brake")
    ecc_corrected: int | None = Field(description="Since the driver was loaded")
    ecc_uncorrected: int | None
    xids_application: int = Field(description="Xid errors since the host started that a program causes")
    xids_hardware: int
    last_xid: int
    last_xid_at_unix_s: int


class DeviceAnswer(ResponseModel):
    """One device."""

    id: str
    name: str
    library: str
    description: str
    total_bytes: int
    free_bytes: int
    free_source: str
    free_age_ms: int
    trust: str
    promised_bytes: int
    reserve_bytes: int
    max_bytes: int | None
    class_: str = Field(alias="class")
    pool: str
    backing_pool: str | None
    pci_id: str | None
    driver: str | None
    speed_bytes_s: float | None
    speed_source: str | None = Field(description="replicas, like devices or probe copy")
    copy_bytes_s: float | None
    state: str
    state_reason: str
    check_exit_code: int | None
    check_last_line: str | None
    vitals: DeviceVitals | None


class ClearedDevice(DeviceAnswer):
    """POST /puna/v1/devices/clear: a device after its test."""

    node: str


class NodeDevice(DeviceAnswer):
    """One device, and what lies on it."""

    holds: list[Held]
    lent_to: list[BorrowingPlacement] = Field(description="Placements of other nodes that it serves")


class NodeRunner(ResponseModel):
    """One process of a node that serves a model."""

    placement: str
    generation: int
    model: str
    digest: str
    state: str
    slots_total: int
    slots_busy: int
    queued: int
    pid: int
    metrics_address: str


class NodeAnswer(ResponseModel):
    """One node. Figures are as their source said them."""

    id: str
    address: str
    state: str = Field(description="ready, probing, degraded, suspect, draining or drained")
    draining_replicas: int | None
    build: str
    report_age_ms: int
    ram: Memory | None
    store: StoreRoom
    states: list[StatesTier] = Field(description="Saved conversations; one may be in both tiers")
    devices: list[NodeDevice]
    runners: list[NodeRunner]
    crash_rows: list[CrashRowAnswer] = Field(
        description="Models whose replicas crash here; POST /puna/v1/load forgets them"
    )


class NodeList(ResponseModel):
    """GET /puna/v1/nodes."""

    nodes: list[NodeAnswer]


class DrainedNode(ResponseModel):
    """POST /puna/v1/nodes/{node}/drain, undrain and remove."""

    node: str
    state: str
    draining_replicas: int | None = Field(default=None, description="That are still there; of drain only")
    lost_replicas: int | None = Field(default=None, description="That it had; of remove only")

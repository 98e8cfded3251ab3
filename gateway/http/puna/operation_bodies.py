"""Answers for operators and orchestrators."""

from pydantic import Field, RootModel

from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.puna.placement_answers import BorrowingPlacement, CrashRowAnswer


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


class Held(ResponseModel):
    """Bytes of one placement on a device."""

    placement: str
    model: str
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int


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
    devices: list[NodeDevice]
    runners: list[NodeRunner]
    crash_rows: list[CrashRowAnswer] = Field(
        description="Models whose replicas crash here; POST /puna/v1/load forgets them"
    )


class NodeList(ResponseModel):
    """GET /puna/v1/nodes."""

    nodes: list[NodeAnswer]


class DrainedNode(ResponseModel):
    """POST /puna/v1/nodes/{node}/drain and undrain."""

    node: str
    state: str
    draining_replicas: int | None = Field(default=None, description="That are still there; of drain only")

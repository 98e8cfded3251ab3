"""Answers about what is loaded, what is wanted, and why."""

from typing import Any

from pydantic import Field

from gateway.http.endpoint.response_model import ResponseModel


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


class ExplainedReplica(ResponseModel):
    """A replica that there is."""

    placement: str
    node: str
    devices: list[str]
    context_length: int
    predicted_bytes: int
    allocated_bytes: int
    pinned: bool


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

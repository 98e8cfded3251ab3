"""Answers about what is loaded, what is wanted, and why."""

from typing import Any

from pydantic import Field

from gateway.http.endpoint.answer_body import Answer


class LayoutRow(Answer):
    """What one device has of a replica."""

    device: str
    name: str
    layers: int


class PlacementAnswer(Answer):
    """One replica, with its load."""

    id: str
    generation: int
    model: str = Field(description="The name that was asked for, else the first of `names`")
    names: list[str] = Field(description="Of its file, as far as the caller may use them")
    digest: str
    node: str
    state: str
    fraction: float | None = Field(description="How far its load is; null: it is loaded")
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


class Wanted(Answer):
    """What operators set for a model. Only what asks for something is in `constraints` and `defaults`."""

    model: str
    from_file: bool
    constraints: dict[str, Any]
    defaults: dict[str, Any]


class WantedAndPlaced(Wanted):
    """The same, and the model's replicas."""

    placements: list[PlacementAnswer]


class PlacementList(Answer):
    """GET /puna/v1/placements."""

    placements: list[PlacementAnswer]
    models: list[Wanted] | None = Field(description="Null: there is no scheduler to say")


class Forgotten(Answer):
    """DELETE /puna/v1/placements/{model}."""

    model: str
    was_set: bool


class Unloaded(Answer):
    """POST /puna/v1/unload: how many replicas were told to stop."""

    model: str
    replicas: int


class ExplainedConstraint(Answer):
    """A wish that the decision obeys, and who has it."""

    name: str
    value: str
    origin: str


class LentTo(Answer):
    """A placement of another node that a device is lent to."""

    placement: str
    model: str
    node: str


class ExplainedDevice(Answer):
    """What a candidate needs of a device, and what there is."""

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
        description="What kept more from being available: free, promised, max_bytes, model_max_bytes, server_in_use"
    )
    max_bytes: int | None = Field(description="Of the limit of this name, else the operator's for the device")
    pool: str | None = Field(description="Whose figures these are; null: the device's own")
    lent_to: list[LentTo]
    speed_bytes_s: int | None = Field(description="That ranks the device")
    speed_source: str | None = Field(description="replicas, like devices or probe copy")


class ExplainedCandidate(Answer):
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


class Victim(Answer):
    """A replica that would go."""

    placement: str
    model: str
    node: str
    loss: float


class ExplainedShare(Answer):
    """How many layers a device gets."""

    device: str
    layers: int


class ExplainedLayout(Answer):
    """What was decided."""

    devices: list[ExplainedShare]
    context_length: int
    slots: int
    num_batch: int
    cache_type_k: str
    cache_type_v: str
    pipeline: bool


class ExplainedReplica(Answer):
    """A replica that there is."""

    placement: str
    node: str
    devices: list[str]
    context_length: int
    predicted_bytes: int
    allocated_bytes: int
    pinned: bool


class ExplanationAnswer(Answer):
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

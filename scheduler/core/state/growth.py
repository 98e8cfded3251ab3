"""Size and rate of reloads with a larger context: clients that differ must not make a model thrash.

A replica with more context than asked serves, so the largest that was asked for lately is what a new one gets.
"""

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.values.view import ModelFile

RELOAD_COOLDOWN_S = 60.0
ASKED_TOKENS_S = 600.0  # how long a requested context counts when a larger one is loaded

# Of each model, so many different sizes are remembered; more clients than that do not differ in it.
SIZES_MAX = 16


def remember_asked(state: ClusterState, digest: str, wanted_tokens: int | None, now_s: float) -> None:
    """Remember the context size of a request."""
    if wanted_tokens is None:
        return
    fresh = [
        (at_s, tokens)
        for at_s, tokens in state.models[digest].largest_asked
        if now_s < at_s + ASKED_TOKENS_S and tokens > wanted_tokens
    ]
    # What is smaller and older can never be the largest again.
    state.models[digest].largest_asked = (*fresh[-SIZES_MAX + 1 :], (now_s, wanted_tokens))


def grown_context_tokens(state: ClusterState, model: ModelFile, chosen: int, now_s: float) -> int:
    """Return the context of a load beside serving replicas: the largest of recent requests, and never less."""
    asked = [tokens for at_s, tokens in state.models[model.digest].largest_asked if now_s < at_s + ASKED_TOKENS_S]
    return max([chosen, *asked])


def may_replace(state: ClusterState, digest: str, now_s: float) -> bool:
    """Return True if a larger replica may replace one of the model again. One that fits beside it need not wait."""
    return now_s >= state.models[digest].replaced_at_s + RELOAD_COOLDOWN_S


def superseded_by(state: ClusterState, digest: str, placement_id: str, context_tokens: int, kept: int) -> list[str]:
    """Return the replicas that a larger one makes unnecessary, smallest first; at least `kept` stay."""
    others = [runner for _, runner in serving_replicas(state, digest) if runner.placement_id != placement_id]
    smaller = sorted(
        (runner for runner in others if runner.layout.context_tokens < context_tokens),
        key=lambda runner: (runner.layout.context_tokens, runner.placement_id),
    )
    spare = 1 + len(others) - max(1, kept)
    return [runner.placement_id for runner in smaller[: max(0, spare)]]

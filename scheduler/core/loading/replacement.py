"""Replacement of a lost replica: a new load of its model is planned with the options of the lost one.

The new load's own options come first: if they need another kind of replica, nothing is taken over. A request is never
refused for options that it did not set: if there is no room or no device for the old options, its own hold. The old
options end with the keep_alive of the lost replica, with an unload, and if the model crashes or fails repeatedly: they
may be the reason.
"""

from dataclasses import replace

from common.errors import InvalidRequest
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.loading.answers import forget
from scheduler.core.loading.crashes import excluded_nodes
from scheduler.core.room.keep_cost import default_keep_alive_ms
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import LOAD_ATTEMPTS_MAX, LoadJob
from scheduler.core.state.model_constraints import constraints_of, load_constraints
from scheduler.core.values.asked import Asked
from scheduler.core.values.constraints import unmatched
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.view import ModelFile


def find_replaced(state: ClusterState, model: ModelFile, own: Asked, now_s: float) -> DesiredPlacement | None:
    """Return the lost replica that a load for `own` replaces, with both options merged.

    None: there is none, or it was of another kind.
    """
    if state.models[model.digest].failures.count >= LOAD_ATTEMPTS_MAX:
        return None
    excluded = excluded_nodes(state, model.digest, now_s)
    taken = {job.instead_of for job in state.jobs.values()}
    for record in sorted(_lost(state, model.digest), key=lambda one: one.placement_id):
        if record.placement_id in taken or record.node_id in excluded or not _counts(state, record, now_s):
            continue
        asked = own.like(record.asked) if (own.context_tokens or 0) <= record.layout.context_tokens else None
        if asked is not None and _can_be_followed(state, model, asked.options):
            return replace(record, asked=asked)
    return None


def _lost(state: ClusterState, digest: str) -> list[DesiredPlacement]:
    """Return the records of a model whose runner died or whose node is gone with it."""
    return [
        record
        for record in state.desired.values()
        if record.model_digest == digest
        and (record.phase is Phase.LOST or (record.phase is Phase.RUNNING and state.node(record.node_id) is None))
    ]


def _counts(state: ClusterState, record: DesiredPlacement, now_s: float) -> bool:
    """Return True if the replica would still be kept, had it not been lost."""
    constraints = constraints_of(state, record.model_name)
    keep_alive_ms = default_keep_alive_ms(state, constraints) if record.keep_alive_ms is None else record.keep_alive_ms
    if constraints.replicas_min or constraints.pinned or keep_alive_ms < 0:
        return True
    unseen_since_s = state.desired_unseen_since_s.get(record.placement_id, now_s)
    return now_s < state.lost_since_s.get(record.placement_id, unseen_since_s) + keep_alive_ms / 1000


def _can_be_followed(state: ClusterState, model: ModelFile, options: LoadOptions) -> bool:
    """Return True if the options fit the model's present constraints and the devices of the cluster."""
    try:
        constraints = load_constraints(state, model.name, options)
    except InvalidRequest:
        return False
    return not unmatched(constraints, state.observed.nodes.values())


def drop_replacement(job: LoadJob) -> bool:
    """Return the load to its own options; False: nothing was taken over."""
    if job.own is None:
        return False
    job.target, job.own = job.own, None
    return True


def join_replacement(job: LoadJob, wanted: int | None, options: LoadOptions) -> None:
    """Merge the options of a joining caller into those that the load keeps when it drops the replacement."""
    own = job.own
    if own is None:
        return
    if options.placing != NO_LOAD_OPTIONS.placing:
        job.own = None  # the same options, now by a request of its own
    elif wanted is not None:
        asked = replace(own.asked, context_tokens=max(wanted, own.asked.context_tokens or 0))
        job.own = replace(own, asked=asked, context_tokens=max(wanted, own.context_tokens))


def forget_lost(state: ClusterState, digest: str) -> None:
    """Drop the records of a model's lost replicas, which no load is to replace any more."""
    taken = {job.record.placement_id for job in state.jobs.values() if job.record is not None}
    for record in _lost(state, digest):
        if record.placement_id not in taken:
            forget(state, record.placement_id)

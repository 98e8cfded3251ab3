"""A fetch that failed: retry from other nodes that have the model, then for another node, up to a limit.

A full disk is the node's own fault: no other source helps. What is said of every attempt stays with the load, and
explanations name it for the node. A draft model is given up at its first failure.
"""

from common import errors
from common.spec.layout import Layout
from scheduler.core.loading.answers import fail
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import LOAD_NODES_MAX, LoadJob
from scheduler.core.values.faults import DISK_FULL, Fault
from scheduler.core.values.origins import Origin, draft_origin, origins_for
from scheduler.core.values.view import NodeView

# What hosts say of files that did not come, or are not what they should be.
FETCH_REASONS = frozenset(
    {
        errors.RegistryFailed.reason,
        errors.DigestMismatch.reason,
        errors.ModelNotFound.reason,
        errors.PermissionDenied.reason,
        DISK_FULL,
    }
)


# Likewise of a draft model, which the node's engine may not know.
DRAFT_REASONS = FETCH_REASONS | {errors.BadModelFile.reason}


def name_origins(state: ClusterState, job: LoadJob, node: NodeView, layout: Layout) -> None:
    """Set the sources of a node's missing files, untried ones first; None: nothing is missing, or no node has it."""
    nodes = state.observed.nodes.values()
    found = origins_for(nodes, node, job.model_digest, layout.projector_digest)
    untried = (one for one in found if not _has_failed(job, node.id, one))
    job.origin = next(untried, found[0] if found else None)
    job.draft_origin = draft_origin(nodes, node, layout)


def is_of_fetch(job: LoadJob, fault: Fault) -> bool:
    """Return True if a start failed because files could not be fetched."""
    if fault.reason == DISK_FULL:
        return True
    reasons = FETCH_REASONS if job.draft_origin is None else DRAFT_REASONS
    return fault.reason in reasons and bool(job.origin or job.draft_origin) and job.attempt.fetched_s == 0.0


def is_of_headers(state: ClusterState, job: LoadJob, node_id: str, fault: Fault) -> bool:
    """Return True if a model could not be counted because its headers could not be fetched."""
    reasons = FETCH_REASONS if job.draft_origin is None else DRAFT_REASONS
    return fault.reason in reasons and bool(job.origin or job.draft_origin) and state.node(node_id) is not None


def on_headers_failed(state: ClusterState, job: LoadJob, node_id: str, fault: Fault, now_s: float) -> None:
    """Leave the node: nothing was counted there, and the same layout may be counted on another one."""
    if _gives_up_draft(job, fault):
        return
    job.failed.count += 1
    leave_node(state, job, node_id, fault)
    if len(job.failed.nodes) >= LOAD_NODES_MAX:
        fail(state, job, job.failed.as_fault(fault), now_s)


def on_fetch_failed(state: ClusterState, job: LoadJob, node_id: str, fault: Fault, now_s: float) -> None:
    """Plan again without the failed source, until too many nodes have failed."""
    if _gives_up_draft(job, fault):
        job.plan_again(now_s, pause_s=0.0)
        return
    leave_node(state, job, node_id, fault)
    if len(job.failed.nodes) >= LOAD_NODES_MAX:
        fail(state, job, job.failed.as_fault(fault), now_s)
        return
    job.plan_again(now_s, pause_s=0.0)


def _gives_up_draft(job: LoadJob, fault: Fault) -> bool:
    """Do without a draft model that was to be fetched, alone or after its target; False: there is none."""
    if job.draft_origin is None:
        return False
    job.draft_origin, job.failed.draft = None, fault.message
    return True


def leave_node(state: ClusterState, job: LoadJob, node_id: str, fault: Fault) -> None:
    """Record a failed attempt; exclude the node if no other source of the model is left for it."""
    job.failed.add(node_id, fault)
    node, origin = state.node(node_id), job.origin
    if origin is not None:
        job.failed.fetches.add((node_id, origin))
    projector = origin.projector_digest if origin is not None else ""
    found = () if node is None else origins_for(state.observed.nodes.values(), node, job.model_digest, projector)
    if fault.reason == DISK_FULL or all(_has_failed(job, node_id, one) for one in found):
        job.failed.nodes[node_id] = fault.message


def _has_failed(job: LoadJob, node_id: str, origin: Origin) -> bool:
    """Return True if this node tried these files from all of the present addresses."""
    return any(
        node_id == tried_by
        and (origin.manifest_digest, origin.blob_digests) == (tried.manifest_digest, tried.blob_digests)
        and set(origin.addresses) <= set(tried.addresses)
        for tried_by, tried in job.failed.fetches
    )

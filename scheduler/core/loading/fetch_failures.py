"""A fetch that failed: retry from other nodes that have the model, then for another node, up to a limit.

A full disk is the node's own fault: no other source helps. What is said of every attempt stays with the load, and
explanations name it for the node.
"""

from common import errors
from scheduler.core.loading.answers import fail
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.load_jobs import LOAD_NODES_MAX, LoadJob
from scheduler.core.values.faults import DISK_FULL, Fault
from scheduler.core.values.origins import Origin, origins_for
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


def origin_for_load(state: ClusterState, job: LoadJob, node: NodeView, projector_digest: str) -> Origin | None:
    """Return the source of a node's missing files, untried ones first; None: nothing is missing, or no node has it."""
    found = origins_for(state.observed.nodes.values(), node, job.model_digest, projector_digest)
    untried = (one for one in found if not _has_failed(job, node.id, one))
    return next(untried, found[0] if found else None)


def is_of_fetch(job: LoadJob, fault: Fault) -> bool:
    """Return True if a start failed because files could not be fetched."""
    return fault.reason == DISK_FULL or (
        fault.reason in FETCH_REASONS and job.origin is not None and job.attempt.fetched_s == 0.0
    )


def is_of_headers(state: ClusterState, job: LoadJob, node_id: str, fault: Fault) -> bool:
    """Return True if a model could not be counted because its headers could not be fetched."""
    return fault.reason in FETCH_REASONS and job.origin is not None and state.node(node_id) is not None


def on_headers_failed(state: ClusterState, job: LoadJob, node_id: str, fault: Fault, now_s: float) -> None:
    """Leave the node: nothing was counted there, and the same layout may be counted on another one."""
    job.failed.count += 1
    leave_node(state, job, node_id, fault)
    if len(job.failed.nodes) >= LOAD_NODES_MAX:
        fail(state, job, job.failed.as_fault(fault), now_s)


def on_fetch_failed(state: ClusterState, job: LoadJob, node_id: str, fault: Fault, now_s: float) -> None:
    """Plan again without the failed source, until too many nodes have failed."""
    leave_node(state, job, node_id, fault)
    if len(job.failed.nodes) >= LOAD_NODES_MAX:
        fail(state, job, job.failed.as_fault(fault), now_s)
        return
    job.plan_again(now_s, pause_s=0.0)


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

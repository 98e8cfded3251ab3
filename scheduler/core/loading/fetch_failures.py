"""A fetch that failed: once more from others who have the model, then for another node, so many times in all.

A full disk is the node's own fault: no other source helps. What is said of every attempt stays with the load, and
explanations name it for the node.
"""

from dataclasses import replace

from common import errors
from scheduler.core.books.books import Books
from scheduler.core.books.events import MeasureFailed
from scheduler.core.books.load_jobs import LoadJob
from scheduler.core.loading.answers import fail
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


def origin_for_load(books: Books, job: LoadJob, node: NodeView, projector_digest: str) -> Origin | None:
    """Where a node gets what it lacks for a load, from others than before if it can; None: it has it, or nobody has."""
    found = origins_for(books.observed.nodes.values(), node, job.model_digest, projector_digest)
    untried = (one for one in found if not _has_failed(job, node.id, one))
    return next(untried, found[0] if found else None)


def is_of_fetch(job: LoadJob, fault: Fault) -> bool:
    """Whether a start failed because files did not come."""
    return fault.reason == DISK_FULL or (
        fault.reason in FETCH_REASONS and job.origin is not None and job.fetched_s == 0.0
    )


def is_of_headers(books: Books, job: LoadJob, event: MeasureFailed) -> bool:
    """Whether a model could not be counted because its headers did not come."""
    node = books.node(event.node_id)
    return event.fault.reason in FETCH_REASONS and job.origin is not None and node is not None


def on_headers_failed(books: Books, job: LoadJob, event: MeasureFailed, now_s: float) -> None:
    """Nothing was counted: that says nothing about the same layout elsewhere."""
    job.attempts += 1
    leave_node(books, job, event.node_id, event.fault)
    if len(job.failed_nodes) >= books.policy.load_nodes_max:
        fail(books, job, told(job, event.fault), now_s)


def on_fetch_failed(books: Books, job: LoadJob, node_id: str, fault: Fault, now_s: float) -> None:
    """Try it otherwise, as long as that is of use."""
    leave_node(books, job, node_id, fault)
    if len(job.failed_nodes) >= books.policy.load_nodes_max:
        fail(books, job, told(job, fault), now_s)
        return
    job.plan_again(now_s, pause_s=0.0)


def leave_node(books: Books, job: LoadJob, node_id: str, fault: Fault) -> None:
    """Remember what failed; the node is left once nobody else has the model for it."""
    job.story.append(f"attempt {job.attempts} on {node_id}: {fault.message}")
    job.last_fault = fault
    node, origin = books.node(node_id), job.origin
    if origin is not None:
        job.failed_fetches.add((node_id, origin))
    projector = origin.projector_digest if origin is not None else ""
    found = () if node is None else origins_for(books.observed.nodes.values(), node, job.model_digest, projector)
    if fault.reason == DISK_FULL or all(_has_failed(job, node_id, one) for one in found):
        job.failed_nodes[node_id] = fault.message


def told(job: LoadJob, fault: Fault) -> Fault:
    """The last fault, with every attempt in its text."""
    return replace(fault, message="; ".join(job.story))


def _has_failed(job: LoadJob, node_id: str, origin: Origin) -> bool:
    """Whether these files were tried from everybody who has them now."""
    return any(
        node_id == tried_by
        and (origin.manifest_digest, origin.blob_digests) == (tried.manifest_digest, tried.blob_digests)
        and set(origin.addresses) <= set(tried.addresses)
        for tried_by, tried in job.failed_fetches
    )

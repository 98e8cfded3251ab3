"""Lessons of crashes of loaded replicas for the planner. Pure bookkeeping.

- Out of device memory while it ran: more margin for this model on such devices, never the same layout unchanged.
- The model is loaded again after a pause: half a second, twice as long after every further crash in a row, half a
  minute at most.
- Three crashes of a row within a minute exclude the node: another one is preferred for five minutes. Where none can
  take the model, the excluded node is tried again after the pause: exclusion delays a load and never refuses it.
- A row ends when a replica has served for a minute, five minutes after its last crash, and with an operator's load.
- What a request did that gateways now refuse is not the model's fault: such crashes do not count, from the moment at
  which that is known, before the crash is seen or after. Three such requests within a minute mean that the placement
  is broken, and not the requests: then all crashes count.
"""

from collections.abc import Iterator, Sequence
from math import inf

from scheduler.core.sizes.ledger import device_kind
from scheduler.core.state.cluster_state import FORGOTTEN_MAX, NO_FAILURES, ClusterState, Crash, Life
from scheduler.core.state.effects import ExcuseCrash
from scheduler.core.state.events import CrashesBlamed
from scheduler.core.state.load_jobs import UNPLACED, CrashPause, restart_pause_s
from scheduler.core.state.replicas import serving_replicas
from scheduler.core.state.residuals import keep
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import MEMORY_REASONS, CrashRow, Fault
from scheduler.core.values.memory import DeviceBytes

CRASHES_MAX = 3  # crashes in a row within CRASH_LOOP_S that exclude a node
CRASH_LOOP_S = 60.0
BROKEN_S = 300.0  # how long after its last crash an excluded node is avoided, and a row counts
RESTART_RESET_S = 60.0  # the crash of a replica that served for so long is a first one again

CRASHES_KEPT = 16


def see_crash(state: ClusterState, record: DesiredPlacement, fault: Fault, now_s: float) -> None:
    """Take in the unexpected end of a replica that served, or had just loaded and was not reported ready."""
    tracked = state.tracked.get(record.placement_id)
    is_known = tracked is not None and tracked.generation == record.generation
    unseen_s = 0.0 if record.phase is Phase.STARTING else inf
    crash = Crash(
        at_s=now_s,
        life=(record.placement_id, record.generation),
        model_name=record.model_name,
        error=fault.message,
        served_s=now_s - tracked.ready_since_s if tracked is not None and is_known else unseen_s,
    )
    _forget_old(state, now_s)
    key = (record.model_digest, record.node_id)
    state.crashes[key] = (*state.crashes.get(key, ()), crash)[-CRASHES_KEPT:]
    if crash.life in state.poisoned:
        _excuse(state, record.node_id, crash.life)
    row = _row(state, *key, now_s)
    if row is not None and row.crashes >= CRASHES_MAX:
        state.note(
            "model.crashes_in_a_row", model=row.model_name, node=row.node_id, crashes=row.crashes,
            excluded=row.excluded_until_s is not None, pause_s=row.retry_at_s - now_s, text=row.error,
        )  # fmt: skip
    if fault.reason in MEMORY_REASONS and record.planned is not None:
        named = {part.device_id for part in fault.attempted.devices} if fault.attempted is not None else set[str]()
        for part in record.planned.devices:
            if not named or part.device_id in named:
                _ask_for_more(state, record, part)


def _forget_old(state: ClusterState, now_s: float) -> None:
    for key, crashes in list(state.crashes.items()):
        if now_s >= crashes[-1].at_s + BROKEN_S:
            del state.crashes[key]


def _ask_for_more(state: ClusterState, record: DesiredPlacement, part: DeviceBytes) -> None:
    device = state.device(part.node_id or record.node_id, part.device_id)
    if device is not None:
        graph_and_cache = part.graph_bytes + part.cache_bytes
        keep(
            state,
            state.margins.with_exhausted(
                record.model_digest, device_kind(device), graph_and_cache_bytes=graph_and_cache
            ),
        )


def blame_request(state: ClusterState, event: CrashesBlamed) -> None:
    """Take in which replicas a request has ended. A gateway reports it more than once."""
    for placement_id, generation in event.lives:
        if (placement_id, generation) not in state.poisoned:
            state.poisoned[placement_id, generation] = event.request
            for (_, node_id), crashes in state.crashes.items():
                if any(crash.life == (placement_id, generation) for crash in crashes):
                    _excuse(state, node_id, (placement_id, generation))
            state.note(
                "crash.not_counted", placement=placement_id, generation=generation, why="a request that is refused now"
            )
    while len(state.poisoned) > FORGOTTEN_MAX:
        del state.poisoned[next(iter(state.poisoned))]


def _excuse(state: ClusterState, node_id: str, life: Life) -> None:
    """Have the replica's host blame no device."""
    term, node = state.leadership, state.node(node_id)
    if term is not None and node is not None:
        placement_id, generation = life
        state.emit(
            ExcuseCrash(
                fence=term.fence,
                leader_id=term.leader_id,
                address=node.address,
                node_id=node_id,
                placement_id=placement_id,
                generation=generation,
            )
        )


def forget_crashes(state: ClusterState, digest: str, now_s: float) -> None:
    """Forget the crashes and failed loads of a model, so that its next load begins at once."""
    forgotten = list(crash_rows(state, now_s, digest))
    for key in [key for key in state.crashes if key[0] == digest]:
        del state.crashes[key]
    state.models[digest].failures = NO_FAILURES
    for job in state.jobs.values():
        if job.model_digest == digest and job.state in UNPLACED:
            job.not_before_s, job.restart = min(job.not_before_s, now_s), None
    for row in forgotten:
        state.note("crashes.forgotten", model=row.model_name, node=row.node_id, crashes=row.crashes)


def pause_after_crash(
    state: ClusterState, digest: str, now_s: float, *, on_excluded: bool = False
) -> CrashPause | None:
    """Return what a load of the model waits for now, if anything; `on_excluded`: a load on an excluded node."""
    rows = (row for row in crash_rows(state, now_s, digest) if on_excluded or row.excluded_until_s is None)
    last = max((row for row in rows if now_s < row.retry_at_s), key=lambda row: row.retry_at_s, default=None)
    if last is None:
        return None
    return CrashPause(until_s=last.retry_at_s, length_s=last.retry_at_s - last.last_s, crashes=last.crashes)


def excluded_nodes(state: ClusterState, digest: str, now_s: float) -> dict[str, str]:
    """Return the nodes that are avoided while another one can take the model, with the reason."""
    return {
        row.node_id: f"the model crashed {row.crashes} times within {row.last_s - row.first_s:.0f} s here"
        for row in crash_rows(state, now_s, digest)
        if row.excluded_until_s is not None
    }


def shown_rows(state: ClusterState, now_s: float, digest: str | None = None) -> list[CrashRow]:
    """Return the rows for people: of as many crashes as exclude a node, and more. Only a leader sees crashes."""
    if state.leadership is None:
        return []
    return [row for row in crash_rows(state, now_s, digest) if row.crashes >= CRASHES_MAX]


def crash_rows(state: ClusterState, now_s: float, digest: str | None = None) -> Iterator[CrashRow]:
    """Yield the crashes in a row by model and node that count now; `digest`: only those of this model."""
    for model_digest, node_id in state.crashes:
        if digest is None or model_digest == digest:
            row = _row(state, model_digest, node_id, now_s)
            if row is not None:
                yield row


def _row(state: ClusterState, digest: str, node_id: str, now_s: float) -> CrashRow | None:
    row: list[Crash] = []
    for crash in _counted(state, state.crashes[digest, node_id]):
        if row and (crash.served_s >= RESTART_RESET_S or crash.at_s >= row[-1].at_s + BROKEN_S):
            row.clear()
        row.append(crash)
    if not row or now_s >= row[-1].at_s + BROKEN_S or _serves_well(state, digest, node_id, row[-1], now_s):
        return None
    last = row[-1]
    return CrashRow(
        model_name=last.model_name,
        node_id=node_id,
        crashes=len(row),
        first_s=row[0].at_s,
        last_s=last.at_s,
        retry_at_s=last.at_s + restart_pause_s(len(row)),
        excluded_until_s=last.at_s + BROKEN_S if _is_loop([one.at_s for one in row]) else None,
        error=last.error,
    )


def _serves_well(state: ClusterState, digest: str, node_id: str, last: Crash, now_s: float) -> bool:
    """Return True if a replica on the node has served for long enough since its last crash."""
    return any(
        tracked is not None and last.at_s <= tracked.ready_since_s <= now_s - RESTART_RESET_S
        for at, runner in serving_replicas(state, digest)
        if at == node_id
        for tracked in [state.tracked.get(runner.placement_id)]
    )


def _counted(state: ClusterState, crashes: Sequence[Crash]) -> Sequence[Crash]:
    """Return the crashes that no request is to blame for; all of them where too many requests are."""
    moments: dict[str, float] = {}  # request → its first crash
    for crash in crashes:
        if crash.life in state.poisoned:
            moments.setdefault(state.poisoned[crash.life], crash.at_s)
    if _is_loop(list(moments.values())):
        return crashes
    return [crash for crash in crashes if crash.life not in state.poisoned]


def _is_loop(moments: Sequence[float]) -> bool:
    windows = zip(moments, moments[CRASHES_MAX - 1 :], strict=False)
    return any(last_s - first_s <= CRASH_LOOP_S for first_s, last_s in windows)

"""Placement of a model: a request and a snapshot of the cluster in, a placement or a refusal out.

1. Sort out which devices may be used at all (`device_sets`), each refusal with its reason.
2. Try the steps in order (`shapes`): shapes, eviction and automatic values, best first.
3. In each step try the device sets in order (`ranking`): the fastest, then those with most room.
4. On a device set run the loop (`converge`): plan, measure, plan again. A report that is missing ends it with
   `MeasureFirst`; once it is there, the same way is taken again from what is known.
5. Nothing fits: BUSY if it would once others are gone, else a refusal with the numbers and what would fit (`nearest`).
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import tee

from common.spec.layout import Layout
from scheduler.core.planning.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    Placement,
    PlacementRequest,
    Refusal,
    RefusalKind,
    Reports,
    Verdict,
)
from scheduler.core.planning.converge import NOT_ALLOCATED
from scheduler.core.planning.device_sets import CANDIDATES_MAX, DeviceSet, DeviceSets, find_device_sets
from scheduler.core.planning.evaluator import Evaluator
from scheduler.core.planning.fitting import COMPLETE_SHAPES
from scheduler.core.planning.nearest import nearest, would_fit_text
from scheduler.core.planning.ranking import Ranking, node_sets
from scheduler.core.planning.steps import Step, cache_types, context_steps, steps, tier_bytes
from scheduler.core.sizes.ledger import NO_PLACEMENTS, Available
from scheduler.core.values.constraints import FillPolicy, Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import memory_text
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, NodeView

DEVICE_SETS_TRIED_MAX = 24  # per shape and set of values: what ranks lower is no better

# Refusals that time alone will change.
WAITS_FOR_MEMORY = "waiting for memory"
WAITS_FOR_LOAD = "waiting for another load"
WAITS_FOR_PROBE = "waiting for a node to know its devices"

Outcome = Placement | MeasureFirst | Refusal
Seen = dict[tuple[object, ...], Candidate]


def plan_placement(request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy) -> Outcome:
    """Choose where a model goes; the module's docstring has the order."""
    search = _Search(request, view, reports, policy)
    if (fault := search.evaluator.known.final_fault()) is not None:  # the same bytes everywhere
        return _broken(search, fault)
    outcome = search.run()
    if outcome is not None:
        return outcome
    all_placements = frozenset(promise.placement_id for promise in view.promises) - view.pinned
    return _refuse(search, search.would_fit_without(all_placements) if all_placements else None)


class _Search:
    """One way through the steps."""

    def __init__(
        self, request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy, *, bounds: bool = False
    ) -> None:
        self.request = request
        self.view = view
        self.policy = policy
        self.evaluator = Evaluator(request, view, reports, policy, bounds)
        self.device_sets: DeviceSets = find_device_sets(request, view)
        self._trained_tokens = self._trained()
        self.seen: Seen = {}
        self._orders: dict[tuple[Shape, DeviceKind], Iterator[DeviceSet]] = {}
        self._evictable: frozenset[str] | None = None
        for node, device, (verdict, reason) in self.device_sets.left_out:
            if len(self.seen) >= CANDIDATES_MAX // 2:  # the rest is for what is tried
                break
            self.seen[node.id, device.id] = Candidate(
                node_id=node.id,
                device_ids=(device.id,),
                verdict=verdict,
                slots=0,
                reason=reason,
            )

    def run(self, *, may_evict: bool = True) -> Placement | MeasureFirst | None:
        """Return the first placement that fits, or the measurement that it needs; None: nothing fits."""
        for step in self._steps(may_evict=may_evict):
            without = NO_PLACEMENTS
            if step.evicts:  # candidates for eviction are listed only if nothing fits beside them
                without = self._may_go()
                if not without:
                    continue
            outcome = self._try_step(step, without, self.seen)
            if isinstance(outcome, MeasureFirst):
                return outcome
            if isinstance(outcome, Placement):
                return replace(outcome, candidates=self.considered())
        return None

    def considered(self) -> tuple[Candidate, ...]:
        """Return all candidates; of excluded devices, with their available bytes."""
        nodes = {node.id: node for node in self.view.nodes}
        return tuple(
            one if one.available else replace(one, available=self._rooms_of(one, nodes.get(one.node_id)))
            for one in self.seen.values()
        )

    def _rooms_of(self, left_out: Candidate, node: NodeView | None) -> tuple[Available, ...]:
        device = node.device(left_out.device_id) if node is not None else None
        return (self.evaluator.rooms.on(node, device),) if node is not None and device is not None else ()

    def would_fit_without(self, all_placements: frozenset[str]) -> Placement | MeasureFirst | None:
        """Plan as if all our promises were gone."""
        found: Seen = {}
        self.evaluator.assuming = True
        for step in self._steps(may_evict=False):
            outcome = self._try_step(step, all_placements, found)
            if outcome is not None:
                return outcome
        return None

    def _may_go(self) -> frozenset[str]:
        if self._evictable is None:
            self._evictable = frozenset(one.placement_id for one in self.view.evictable)
        return self._evictable

    def _steps(self, *, may_evict: bool) -> Iterator[Step]:
        tiers = {1}
        if self.request.automatic_context:
            heads = [device_set.node for joint in self.device_sets.joint.values() for device_set in joint]
            totals = {tier_bytes(node) for node in heads} | {0}
            tiers = {len(context_steps(self.request, self._trained_tokens, total)) for total in totals}
        return steps(
            self.request.constraints,
            slot_steps=self.request.slot_steps,
            context_steps=max(tiers),
            cache_steps=len(cache_types(self.request)),
            may_evict=may_evict,
            evict_for_speed=self.policy.evict_for_speed,
        )

    @property
    def _uses_all(self) -> bool:
        """Return True if layers should be on every device."""
        constraints = self.request.constraints
        return constraints.policy is FillPolicy.SPREAD or sum(1 for share in constraints.tensor_split if share) > 1

    def _ranking(self, node: NodeView, *, speeds_known: bool) -> Ranking:
        """Return the order of device sets, for the model as a node has it."""
        facts = self.evaluator.known.facts(node)
        return Ranking(
            request=self.request,
            view=self.view,
            rooms=self.evaluator.rooms,
            bytes_per_token=sum(facts.bytes_per_token(layer) for layer in range(len(facts.layer_weights_bytes))),
            speeds_known=speeds_known,
        )

    def _trained(self) -> int:
        """Return the context that the model was trained with; 0: not given."""
        files = (node.model(self.request.model_digest) for node in self.view.nodes)
        return next((file.trained_context_tokens for file in files if file is not None), 0)

    def _try_step(self, step: Step, without: frozenset[str], seen: Seen) -> Placement | MeasureFirst | None:
        """Return the first device set that holds the model; with evictions, the one that costs least."""
        best: Placement | None = None
        for number, device_set in enumerate(self._in_order(step)):
            if number >= DEVICE_SETS_TRIED_MAX:
                break
            base = self._base(step, device_set)
            if base is None:
                continue
            is_seen = (step.shape, device_set.key) in seen or len(seen) >= CANDIDATES_MAX
            is_skippable = self._is_skippable(step, device_set, without, is_seen=is_seen)
            if is_skippable and self.evaluator.is_too_small(step.shape, device_set, base, without):
                continue
            outcome = self.evaluator.try_device_set(step.shape, device_set, base, without)
            match outcome:
                case MeasureFirst():
                    return outcome
                case Candidate():
                    self._remember(seen, (step.shape, device_set.key), outcome)
                case Placement():
                    self._remember(seen, (step.shape, device_set.key), outcome.candidates[0])
                    if not outcome.victims:
                        return outcome
                    if best is None or self._loss(outcome) < self._loss(best):
                        best = outcome
        return best

    def _is_skippable(self, step: Step, device_set: DeviceSet, without: frozenset[str], *, is_seen: bool) -> bool:
        """Return True if a set that cannot hold the model needs no try: no figures are shown, or others are.

        A set that may use host RAM is tried once, with the least values.
        """
        if not self.evaluator.is_for_people:
            return True
        if step.shape in COMPLETE_SHAPES:
            return is_seen
        return (is_seen and bool(without)) or not self._has_least_values(step, device_set)

    def _has_least_values(self, step: Step, device_set: DeviceSet) -> bool:
        if step.slots != self.request.slot_steps[-1]:
            return False
        last_cache = step.cache_step + 1 == len(cache_types(self.request))
        return last_cache and self._base(replace(step, context_step=step.context_step + 1), device_set) is None

    def _loss(self, placement: Placement) -> float:
        return sum(one.loss for one in self.view.evictable if one.placement_id in placement.victims)

    def _remember(self, seen: Seen, key: tuple[object, ...], candidate: Candidate) -> None:
        """Remember a candidate to show: the last counted one is more exact than one that was not counted."""
        known = seen.get(key)
        if known is None and len(seen) >= CANDIDATES_MAX:
            return
        if known is None or candidate.origin.is_counted or not known.origin.is_counted:
            seen[key] = candidate

    def _in_order(self, step: Step) -> Iterator[DeviceSet]:
        """Return the device sets of a step, best first. Values and evictions change no order, so each is made once."""
        key = (step.shape, step.kind)
        joint = self.device_sets.joint.get(step.kind, [])
        if step.shape is Shape.ONE_NODE and all(len(one.devices) > 1 for one in joint):
            key = (Shape.PARTIAL, step.kind)  # the same device sets
        if key not in self._orders:
            (self._orders[key],) = tee(self._ordered(step), 1)
        return copy(self._orders[key])  # from its beginning; what others have seen of it is kept

    def _ordered(self, step: Step) -> Iterator[DeviceSet]:
        if step.shape is Shape.NODES:
            return node_sets(self.device_sets, self.evaluator.rooms, nodes_max=self.policy.rpc_nodes_max)
        speeds_known = self.device_sets.speeds_known and step.shape is not Shape.CPU
        if step.shape is Shape.ONE_DEVICE and not self._uses_all:
            sites = self.device_sets.single.get(step.kind)
            return self._ranking(sites[0][3][0], speeds_known=speeds_known).sites(sites) if sites else iter(())
        device_sets = self.device_sets.of_shape(step.shape, step.kind)
        if step.shape is Shape.ONE_DEVICE:
            joint = self.device_sets.joint.get(step.kind, [])
            alone = {one.node.id for one in joint if len(one.devices) == 1}
            device_sets = [one for one in device_sets if one.node.id in alone]
        if not device_sets:
            return iter(())
        if step.shape is Shape.EXPERTS_ON_HOST and not self.evaluator.known.facts(device_sets[0].node).has_experts:
            return iter(())
        return self._ranking(device_sets[0].node, speeds_known=speeds_known).sets(device_sets)

    def _base(self, step: Step, device_set: DeviceSet) -> Layout | None:
        """Return the values of the step on this device set; None: it has stepped down as far as it can."""
        total = tier_bytes(device_set.node) if step.shape is not Shape.CPU else 0
        contexts = context_steps(self.request, self._trained_tokens, total)
        if step.context_step >= len(contexts):
            return None
        layout = cache_types(self.request)[step.cache_step]
        return replace(layout, context_tokens=contexts[step.context_step], slots=step.slots)


def _refuse(search: _Search, elsewise: Placement | MeasureFirst | None) -> Outcome:
    """Explain why nothing was taken: wait, too large, broken, or no device; in this order."""
    candidates = search.considered()
    if isinstance(elsewise, MeasureFirst):
        return elsewise
    if elsewise is not None:
        return Refusal(kind=RefusalKind.BUSY, message=WAITS_FOR_MEMORY, candidates=candidates)
    if any(one.verdict is Verdict.LOAD_IN_PROGRESS for one in candidates):
        return Refusal(kind=RefusalKind.BUSY, message=WAITS_FOR_LOAD, candidates=candidates)
    if any(one.verdict is Verdict.NODE_PROBING for one in candidates):
        return Refusal(kind=RefusalKind.BUSY, message=WAITS_FOR_PROBE, candidates=candidates)
    short = [one for one in candidates if one.verdict in (Verdict.SHORT_BYTES, Verdict.LAYOUT_NOT_FOUND)]
    if short:
        would_fit = _nearest(search, search.request)
        text = _memory_text(short)
        if would_fit:
            text += f"; {would_fit_text(would_fit)}"
        return Refusal(kind=RefusalKind.INSUFFICIENT_MEMORY, message=text, candidates=candidates, nearest=would_fit)
    failed = [one for one in candidates if one.verdict is Verdict.MEASURE_FAILED]
    if failed:
        reports = search.evaluator.reports.values()
        fault = next((report for report in reports if isinstance(report, Fault)), None)
        return Refusal(kind=RefusalKind.MEASURE_FAILED, message=failed[0].reason, candidates=candidates, fault=fault)
    reasons = sorted({one.reason for one in candidates if one.reason})
    text = "; ".join(reasons) if search.view.nodes and reasons else "no node is known"
    # Where allocations failed, less may succeed.
    would_fit = _nearest(search, replace(search.request, failed_nodes={})) if search.request.backoff else ()
    text = f"no device can take the model: {text}"
    return Refusal(kind=RefusalKind.NO_DEVICE, message=text, candidates=candidates, nearest=would_fit)


def _nearest(search: _Search, request: PlacementRequest) -> tuple[str, ...]:
    return nearest(request, search.view, search.policy, partial(_fits, search.evaluator.reports))


def _fits(reports: Reports, request: PlacementRequest, view: ClusterView, policy: Policy) -> bool:
    return isinstance(_Search(request, view, reports, policy, bounds=True).run(may_evict=False), Placement)


def _broken(search: _Search, fault: Fault) -> Refusal:
    candidates = search.considered()
    return Refusal(kind=RefusalKind.MEASURE_FAILED, message=fault.message, candidates=candidates, fault=fault)


def _memory_text(short: list[Candidate]) -> str:
    """Choose the shortage to report: counted before estimated, then devices last, since RAM takes what they cannot."""
    given = [one.reason for one in short if one.reason.startswith(f"{NOT_ALLOCATED} with")]
    numbered = [one for one in short if one.needs]
    if given or not numbered:
        return given[0] if given else short[0].reason
    best = min(
        numbered,
        key=lambda one: (
            not one.origin.is_counted, one.shape is not Shape.CPU, one.short_bytes, one.node_id, one.device_id,
        ),
    )  # fmt: skip
    need, have = best.shortest
    return memory_text(need.total_bytes, have.available_bytes)

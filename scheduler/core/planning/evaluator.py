"""Evaluation of one shape with one set of values on one device set, over the known reports."""

from dataclasses import dataclass, field, replace

from common.spec.layout import Layout
from scheduler.core.planning.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    Placement,
    PlacementRequest,
    Reports,
    Verdict,
)
from scheduler.core.planning.converge import NOT_ALLOCATED, Missing, Unallocatable, converge
from scheduler.core.planning.device_sets import DeviceSet
from scheduler.core.planning.fitting import COMPLETE_SHAPES, Fitting
from scheduler.core.planning.known_reports import KnownReports, measure_key
from scheduler.core.sizes.eviction import Evictable, choose_victims
from scheduler.core.sizes.ledger import Available, Kept, Limit, Need
from scheduler.core.sizes.measuring_bytes import measuring_bytes
from scheduler.core.sizes.rooms import PLACES, Rooms, device_of
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.constraints import Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryOrigin, MemoryReport, bytes_text, memory_text
from scheduler.core.values.policy import Policy


@dataclass(slots=True)
class Evaluator:
    """Evaluator of candidates for one request against one snapshot."""

    request: PlacementRequest
    view: ClusterView
    reports: Reports
    policy: Policy
    bounds: bool = False  # nothing is measured any more: see KnownReports
    assuming: bool = False  # only to know: blockers count as gone, and no victim is chosen
    rooms: Rooms = field(init=False)
    known: KnownReports = field(init=False)

    def __post_init__(self) -> None:
        self.rooms = Rooms(policy=self.policy, promises=self.view.promises, backoff=self.request.backoff)
        self.known = KnownReports(self.request.model_digest, self.reports, self.policy, self.bounds)

    @property
    def is_for_people(self) -> bool:
        """Return True if candidates are shown; else only the answer counts."""
        return not (self.bounds or self.assuming)

    def try_device_set(
        self, shape: Shape, device_set: DeviceSet, base: Layout, without: frozenset[str]
    ) -> Candidate | Placement | MeasureFirst:
        """Try to place the model in this shape, with these values, as if the placements `without` were gone."""
        fitting = self._fitting(shape, device_set, base, without)
        if (rejected := self._reject_too_small(fitting)) is not None:
            return rejected
        outcome = converge(fitting, lambda layout: self._report(device_set, layout, without))
        match outcome:
            case Missing():
                return self._measure_first(device_set, outcome.layout)
            case Unallocatable():
                return self._unfit(fitting, outcome)
            case Placement():
                return self._with_pipeline(fitting, outcome)

    def _report(self, device_set: DeviceSet, layout: Layout, without: frozenset[str]) -> MemoryReport | Fault | None:
        """Return the report or the fault of a layout; None: it can be measured.

        A measurement holds a context on every device, and itself in RAM. Where that has no room now, a formula has to
        do; if there will be once others have gone, without what is only guessed: it is measured then.
        """
        found = self.known.report(device_set, layout)
        if found is not None or self._can_measure(device_set, layout):
            return found
        return self.known.least_report(device_set, layout) if without else self.known.estimate(device_set, layout)

    def _can_measure(self, device_set: DeviceSet, layout: Layout) -> bool:
        nodes = device_set.nodes
        for (node_id, device_id), count in self._holds(device_set, layout).items():
            device = nodes[node_id].device(device_id)
            if device is None or self.rooms.on(nodes[node_id], device).available_bytes < count:
                return False
        return True

    def _holds(self, device_set: DeviceSet, layout: Layout) -> dict[DeviceKey, int]:
        """Return the bytes that a measurement would take."""
        return measuring_bytes(
            device_set.node, layout, self.known.facts(device_set.node), device_set.nodes, self.policy
        )

    def is_too_small(self, shape: Shape, device_set: DeviceSet, base: Layout, without: frozenset[str]) -> bool:
        """Return True if a device set cannot hold the least known size of the model under any plan."""
        if (given := self.request.constraints.num_gpu) is not None:
            return shape in COMPLETE_SHAPES and given < len(self.known.facts(device_set.node).layer_weights_bytes)
        most = device_set.total_bytes if without else device_set.free_bytes
        if shape in COMPLETE_SHAPES:
            return self.known.least_on_devices(device_set, base) > most
        host = device_set.node.host_device
        if device_set.devices and host is not None:
            most += host.total_bytes if without else min(host.free_bytes, host.total_bytes)
        return self.known.least_anywhere(device_set) > most

    def _fitting(self, shape: Shape, device_set: DeviceSet, base: Layout, without: frozenset[str]) -> Fitting:
        facts = self.known.facts(device_set.node)
        sizes, guessed = self.known.sizes(device_set, base), self._are_guessed(device_set, base)
        return Fitting(
            shape=shape,
            device_set=device_set,
            base=base,
            constraints=self.request.constraints,
            facts=facts,
            sizes=replace(sizes, beside_bytes=0) if guessed else sizes,  # no formula refuses what can be counted
            rooms=self.rooms,
            kept=Kept(
                policy=self.policy,
                margins=self.view.margins,
                model_digest=self.request.model_digest,
                architecture=facts.architecture,
            ),
            without=without,
            devices_min=2 if shape is Shape.ONE_NODE else 1,
            cells_guessed=guessed,
            speeds_known=all(device.speed_bytes_s > 0 for _, device in device_set.devices),
            decoding=self.view.decoding,
        )

    def _are_guessed(self, device_set: DeviceSet, base: Layout) -> bool:
        """Return True if sizes come from formulas although they can be counted."""
        return self.policy.measure and not self.known.are_sizes_counted(device_set, base)

    def _measure_first(self, device_set: DeviceSet, layout: Layout) -> MeasureFirst:
        key = measure_key(self.request.model_digest, device_set, layout)
        return MeasureFirst(key=key, node_id=device_set.node.id, layout=layout, holds=self._holds(device_set, layout))

    def _reject_too_small(self, fitting: Fitting) -> Candidate | None:
        """Return a rejected candidate if the set cannot hold the model; no other value is measured."""
        if fitting.shape not in COMPLETE_SHAPES or fitting.given_layers is not None:
            return None
        least = self.known.least_on_devices(fitting.device_set, fitting.base)
        owned = fitting.device_set.devices
        have = sum(self.rooms.on(node, device, fitting.without).available_bytes for node, device in owned)
        if least <= have:
            return None
        layout, report = self._for_people(fitting)
        text = f"weights and cache take {bytes_text(least)} of devices, {bytes_text(have)} are available"
        return replace(self._candidate(fitting, Verdict.SHORT_BYTES, layout, report), reason=text)

    def _for_people(self, fitting: Fitting) -> tuple[Layout | None, MemoryReport | None]:
        """Return figures to show if nothing was measured: for everything on one device, or in host RAM."""
        owned = fitting.device_set.devices
        if len(owned) > 1:
            return None, None
        layers = len(fitting.facts.layer_weights_bytes)
        layout = fitting.base.on(owned[0][1].id, layers) if owned else fitting.base.without_devices()
        measured = self.known.report(fitting.device_set, layout)
        report = measured if isinstance(measured, MemoryReport) else self.known.estimate(fitting.device_set, layout)
        return layout, report

    def _unfit(self, fitting: Fitting, outcome: Unallocatable) -> Candidate:
        verdict = Verdict.SHORT_BYTES
        if outcome.fault is not None:
            verdict = Verdict.MEASURE_FAILED
        elif outcome.report is not None and outcome.layout is not None and fitting.fits(outcome.report, outcome.layout):
            verdict = Verdict.LAYOUT_NOT_FOUND
        layout, report = outcome.layout, outcome.report
        if layout is None and fitting.shape in COMPLETE_SHAPES:
            layout, report = self._for_people(fitting)
        found = self._candidate(fitting, verdict, layout, report)
        text = outcome.message
        if outcome.fault is None and fitting.host_text and outcome.message == NOT_ALLOCATED:
            text = fitting.host_text
        elif verdict is Verdict.SHORT_BYTES and outcome.message == NOT_ALLOCATED and found.short_bytes > 0:
            text = _short_text(found)
        return replace(found, reason=text, rounds=outcome.rounds)

    def _with_pipeline(self, fitting: Fitting, found: Placement) -> Candidate | Placement | MeasureFirst:
        """Turn on the pipeline over several devices if the copies of the graph fit."""
        device_set, layout = fitting.device_set, found.layout
        backends = {device_set.device(part.node_id, part.device_id)[1].backend for part in layout.devices}
        complete = sum(part.layer_count for part in layout.devices) == len(fitting.facts.layer_weights_bytes)
        if len(layout.devices) > 1 and complete and backends <= self.policy.pipeline_backends:
            piped = replace(layout, pipeline=True)
            report = self._report(device_set, piped, fitting.without)
            if report is None:
                return self._measure_first(device_set, piped)
            if isinstance(report, MemoryReport) and fitting.fits(report, piped):
                found = fitting.placement(piped, report, rounds=found.rounds)
        return self._with_victims(fitting, found)

    def _with_victims(self, fitting: Fitting, found: Placement) -> Candidate | Placement:
        """Choose the replicas to evict; the placement is no more than a candidate if they are not enough."""
        nodes, needs = fitting.device_set.nodes, found.needs
        victims: tuple[str, ...] | None = ()
        if fitting.without and not self.assuming and self.rooms.short_pools(needs, nodes):
            here = self._evictable_on(fitting.device_set)
            victims = choose_victims(here, lambda gone: self.rooms.short_pools(needs, nodes, gone))
        verdict = Verdict.SHORT_BYTES if victims is None else Verdict.FITS
        candidate = replace(self._candidate(fitting, verdict, found.layout, found.report), rounds=found.rounds)
        if victims is None:
            return candidate
        return replace(found, victims=victims, candidates=(candidate,), expected_s=candidate.expected_s)

    def _evictable_on(self, device_set: DeviceSet) -> list[Evictable]:
        """Return the evictable replicas of these nodes; each of them also frees its place."""
        found = []
        for one in self.view.evictable:
            nodes = {pool[0] for pool in one.pool_bytes} & device_set.nodes.keys()
            if nodes:
                places = {(node_id, PLACES): 1 for node_id in nodes}
                found.append(replace(one, pool_bytes={**one.pool_bytes, **places}))
        return found

    def _candidate(
        self, fitting: Fitting, verdict: Verdict, layout: Layout | None, report: MemoryReport | None
    ) -> Candidate:
        device_set = fitting.device_set
        needs: tuple[Need, ...] = ()
        if layout is not None and report is not None:
            needs = fitting.needs(report, layout) or ()
        ids = tuple(part.device_id for part in layout.devices) if layout is not None else ()
        layers = tuple(part.layer_count for part in layout.devices) if layout is not None else ()
        ids = ids or tuple(device.id for _, device in device_set.devices)
        host = device_set.node.host_device
        if not ids and host is not None:
            ids = (host.id,)
        return Candidate(
            node_id=device_set.node.id,
            device_ids=ids,
            verdict=verdict,
            shape=fitting.shape,
            slots=fitting.base.slots,
            context_tokens=fitting.base.context_tokens,
            layer_count=sum(layers),
            device_layers=layers,
            needs=needs,
            available=self._available(device_set, ids, needs),
            expected_s=fitting.expected_s(layout) if layout is not None and needs else 0.0,
            origin=report.origin if report is not None else MemoryOrigin.UNKNOWN,
        )

    def _available(self, device_set: DeviceSet, ids: tuple[str, ...], needs: tuple[Need, ...]) -> tuple[Available, ...]:
        """Return the available bytes for each need; without a layout, of each device in question."""
        if needs:
            return tuple(self._for_model(self.rooms.of_need(need, device_set.nodes), device_set) for need in needs)
        owned = [one for one in device_set.devices if one[1].id in ids]
        if not owned and (host := device_set.node.host_device) is not None:
            owned = [(device_set.node, host)]
        return tuple(self._for_model(self.rooms.on(node, device), device_set) for node, device in owned)

    def _for_model(self, have: Available, device_set: DeviceSet) -> Available:
        """Apply the model's own limit, if it is lower."""
        cap = self.request.constraints.max_bytes_on(*device_of(have, device_set.nodes))
        if cap is None or cap >= have.available_bytes:
            return have
        return replace(have, limit=Limit.MODEL_MAX_BYTES, max_bytes=cap)


def _short_text(candidate: Candidate) -> str:
    """Return the shortage of the device that lacks most; for RAM in the words that clients know."""
    need, have = candidate.shortest
    if len(candidate.needs) == 1:
        return memory_text(need.total_bytes, have.available_bytes)
    name = f"{need.node_id}/{need.device_id}" if need.node_id != candidate.node_id else need.device_id
    return f"{bytes_text(need.total_bytes)} of {name} are needed, {bytes_text(have.available_bytes)} are available"

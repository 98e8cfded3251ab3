"""Tries one shape with one set of values on one ground, over the reports that are known."""

from dataclasses import dataclass, field, replace

from scheduler.core.planning.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    Placement,
    PlacementRequest,
    Reports,
    Verdict,
)
from scheduler.core.planning.converge import NOT_ALLOCATED, Converged, Missing, Unallocatable, converge
from scheduler.core.planning.fitting import COMPLETE_SHAPES, Fitting
from scheduler.core.planning.grounds import Ground
from scheduler.core.planning.known_reports import KnownReports, measure_key
from scheduler.core.sizes.eviction import Evictable, choose_victims
from scheduler.core.sizes.ledger import Available, Kept, Limit, Need
from scheduler.core.sizes.measuring_bytes import measuring_bytes
from scheduler.core.sizes.rooms import PLACES, Rooms
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.constraints import Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.layouts import Layout
from scheduler.core.values.memory import MemoryOrigin, MemoryReport, bytes_text, memory_text
from scheduler.core.values.policy import Policy


@dataclass(slots=True)
class Judge:
    """One request against one snapshot."""

    request: PlacementRequest
    view: ClusterView
    reports: Reports
    policy: Policy
    bounds: bool = False  # nothing is measured any more: see KnownReports
    assuming: bool = False  # only to know: whoever is in the way is taken for gone, and nobody is chosen to go
    rooms: Rooms = field(init=False)
    known: KnownReports = field(init=False)

    def __post_init__(self) -> None:
        self.rooms = Rooms(policy=self.policy, promises=self.view.promises, backoff=self.request.backoff)
        self.known = KnownReports(self.request.model_digest, self.reports, self.policy, self.bounds)

    @property
    def is_for_people(self) -> bool:
        """Whether candidates are shown; else only the answer counts."""
        return not (self.bounds or self.assuming)

    def try_ground(
        self, shape: Shape, ground: Ground, base: Layout, without: frozenset[str]
    ) -> Candidate | Placement | MeasureFirst:
        """Whether the model can lie here in this shape, with these values, if the placements `without` may go."""
        fitting = self._fitting(shape, ground, base, without)
        if (hopeless := self._hopeless(fitting)) is not None:
            return hopeless
        outcome = converge(
            fitting,
            lambda layout: self._report(ground, layout, without),
            given_layers=fitting.given_layers,
            backoff_step=self.policy.backoff_step,
            rounds_max=self.policy.measure_rounds_max,
        )
        match outcome:
            case Missing():
                return self._measure_first(ground, outcome.layout)
            case Unallocatable():
                return self._unfit(fitting, outcome)
            case Converged():
                return self._with_pipeline(fitting, outcome)

    def _report(self, ground: Ground, layout: Layout, without: frozenset[str]) -> MemoryReport | Fault | None:
        """What is known of a layout; None: it can be measured.

        A measurement holds a context on every device, and itself in RAM. Where that has no room now, a formula has to
        do; if there will be once others have gone, without what is only guessed: it is measured then.
        """
        found = self.known.report(ground, layout)
        if found is not None or self._can_measure(ground, layout):
            return found
        return self.known.hope(ground, layout) if without else self.known.estimate(ground, layout)

    def _can_measure(self, ground: Ground, layout: Layout) -> bool:
        nodes = ground.nodes
        for (node_id, device_id), count in self._holds(ground, layout).items():
            device = nodes[node_id].device(device_id)
            if device is None or self.rooms.on(nodes[node_id], device).available_bytes < count:
                return False
        return True

    def _holds(self, ground: Ground, layout: Layout) -> dict[DeviceKey, int]:
        """What a measurement would take."""
        return measuring_bytes(ground.node, layout, self.known.facts(ground), ground.nodes, self.policy)

    def is_hopeless(self, shape: Shape, ground: Ground, base: Layout, without: frozenset[str]) -> bool:
        """Whether a ground cannot hold the least that is known of the model, whatever is planned on it."""
        if (given := self.request.constraints.num_gpu) is not None:
            return shape in COMPLETE_SHAPES and given < len(self.known.facts(ground).layer_weights_bytes)
        most = ground.total_bytes if without else ground.free_bytes
        if shape in COMPLETE_SHAPES:
            return self.known.least_on_devices(ground, base) > most
        host = ground.node.host_device
        if ground.devices and host is not None:
            most += host.total_bytes if without else min(host.free_bytes, host.total_bytes)
        return self.known.least_anywhere(ground) > most

    def _fitting(self, shape: Shape, ground: Ground, base: Layout, without: frozenset[str]) -> Fitting:
        facts = self.known.facts(ground)
        sizes, guessed = self.known.sizes(ground, base), self._are_guessed(ground, base)
        return Fitting(
            shape=shape,
            ground=ground,
            base=base,
            request=self.request,
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
            speeds_known=all(device.speed_bytes_s > 0 for _, device in ground.devices),
            decoding=self.view.decoding,
        )

    def _are_guessed(self, ground: Ground, base: Layout) -> bool:
        """Whether sizes are by formula although they can be counted."""
        return self.policy.measure and not self.known.are_sizes_counted(ground, base)

    def _measure_first(self, ground: Ground, layout: Layout) -> MeasureFirst:
        key = measure_key(self.request.model_digest, ground, layout)
        return MeasureFirst(key=key, node_id=ground.node.id, layout=layout, holds=self._holds(ground, layout))

    def _hopeless(self, fitting: Fitting) -> Candidate | None:
        """What cannot hold the least that is known of the model is not measured for every other value."""
        if fitting.shape not in COMPLETE_SHAPES or fitting.given_layers is not None:
            return None
        least = self.known.least_on_devices(fitting.ground, fitting.base)
        owned = fitting.ground.devices
        have = sum(self.rooms.on(node, device, fitting.without).available_bytes for node, device in owned)
        if least <= have:
            return None
        layout, report = self._for_people(fitting)
        text = f"weights and cache take {bytes_text(least)} of devices, {bytes_text(have)} are available"
        return replace(self._candidate(fitting, Verdict.SHORT_BYTES, layout, report), reason=text)

    def _for_people(self, fitting: Fitting) -> tuple[Layout | None, MemoryReport | None]:
        """Numbers where nothing was measured: of everything on one device, or in host RAM."""
        owned = fitting.ground.devices
        if len(owned) > 1:
            return None, None
        layers = len(fitting.facts.layer_weights_bytes)
        layout = fitting.base.on(owned[0][1].id, layers) if owned else fitting.base.without_devices()
        measured = self.known.report(fitting.ground, layout)
        report = measured if isinstance(measured, MemoryReport) else self.known.estimate(fitting.ground, layout)
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

    def _with_pipeline(self, fitting: Fitting, found: Converged) -> Candidate | Placement | MeasureFirst:
        """Several devices may work on one prompt at the same time, if the copies of the graph fit."""
        ground, layout = fitting.ground, found.layout
        backends = {ground.device(part.node_id, part.device_id)[1].backend for part in layout.devices}
        complete = sum(part.layer_count for part in layout.devices) == len(fitting.facts.layer_weights_bytes)
        if len(layout.devices) > 1 and complete and backends <= self.policy.pipeline_backends:
            piped = replace(layout, pipeline=True)
            report = self._report(ground, piped, fitting.without)
            if report is None:
                return self._measure_first(ground, piped)
            if isinstance(report, MemoryReport) and fitting.fits(report, piped):
                found = replace(found, layout=piped, report=report)
        return self._placement(fitting, found)

    def _placement(self, fitting: Fitting, found: Converged) -> Candidate | Placement:
        ground = fitting.ground
        needs = fitting.needs(found.report, found.layout)
        assert needs is not None, "what fits belongs to its layout"
        victims: tuple[str, ...] | None = ()
        if fitting.without and not self.assuming and self.rooms.short_pools(needs, ground.nodes):
            here = self._evictable_on(ground)
            victims = choose_victims(here, lambda gone: self.rooms.short_pools(needs, ground.nodes, gone))
        verdict = Verdict.SHORT_BYTES if victims is None else Verdict.FITS
        candidate = self._candidate(fitting, verdict, found.layout, found.report)
        candidate = replace(candidate, rounds=found.rounds)
        if victims is None:
            return candidate
        return Placement(
            node_id=ground.node.id,
            layout=found.layout,
            report=found.report,
            needs=needs,
            victims=victims,
            candidates=(candidate,),
            shape=fitting.shape,
            key=measure_key(self.request.model_digest, ground, found.layout),
            expected_s=candidate.expected_s,
            rounds=found.rounds,
        )

    def _evictable_on(self, ground: Ground) -> list[Evictable]:
        """Who may go from these nodes; each of them also frees its place."""
        found = []
        for one in self.view.evictable:
            nodes = {pool[0] for pool in one.pool_bytes} & ground.nodes.keys()
            if nodes:
                places = {(node_id, PLACES): 1 for node_id in nodes}
                found.append(replace(one, pool_bytes={**one.pool_bytes, **places}))
        return found

    def _candidate(
        self, fitting: Fitting, verdict: Verdict, layout: Layout | None, report: MemoryReport | None
    ) -> Candidate:
        ground = fitting.ground
        needs: tuple[Need, ...] = ()
        if layout is not None and report is not None:
            needs = fitting.needs(report, layout) or ()
        ids = tuple(part.device_id for part in layout.devices) if layout is not None else ()
        layers = tuple(part.layer_count for part in layout.devices) if layout is not None else ()
        ids = ids or tuple(device.id for _, device in ground.devices)
        host = ground.node.host_device
        if not ids and host is not None:
            ids = (host.id,)
        return Candidate(
            node_id=ground.node.id,
            device_id=ids[0],
            device_ids=ids,
            verdict=verdict,
            shape=fitting.shape,
            slots=fitting.base.slots,
            context_tokens=fitting.base.context_tokens,
            layer_count=sum(layers),
            device_layers=layers,
            needs=needs,
            available=self._available(ground, ids, needs),
            expected_s=fitting.expected_s(layout) if layout is not None and needs else 0.0,
            origin=report.origin if report is not None else MemoryOrigin.UNKNOWN,
        )

    def _available(self, ground: Ground, ids: tuple[str, ...], needs: tuple[Need, ...]) -> tuple[Available, ...]:
        """What there is for each need; where nothing was laid out, on each device that was looked at."""
        if needs:
            return tuple(self._for_model(self.rooms.of_need(need, ground.nodes), ground) for need in needs)
        owned = [one for one in ground.devices if one[1].id in ids]
        if not owned and (host := ground.node.host_device) is not None:
            owned = [(ground.node, host)]
        return tuple(self._for_model(self.rooms.on(node, device), ground) for node, device in owned)

    def _for_model(self, have: Available, ground: Ground) -> Available:
        """With what the model may take at most, where that is less."""
        node = ground.nodes[have.node_id]
        device = node.device(have.device_id)
        cap = self.request.constraints.max_bytes_on(node, device) if device is not None else None
        if cap is None or cap >= have.available_bytes:
            return have
        return replace(have, limit=Limit.MODEL_MAX_BYTES, max_bytes=cap)


def _short_text(candidate: Candidate) -> str:
    """What is short on the device that lacks most; of RAM in the words that clients know."""
    need, have = candidate.shortest
    if len(candidate.needs) == 1:
        return memory_text(need.total_bytes, have.available_bytes)
    name = f"{need.node_id}/{need.device_id}" if need.node_id not in ("", candidate.node_id) else need.device_id
    return f"{bytes_text(need.total_bytes)} of {name} are needed, {bytes_text(have.available_bytes)} are available"

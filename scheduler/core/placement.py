"""Where a model goes: a request and the view of the cluster in, a placement or a refusal out.

1. Devices in order: GPUs, then integrated ones, then host RAM; within a class the roomiest first.
2. Each class first without, then with evicting idle replicas; a slower class only after that.
3. Automatic slots step down (8, 4, 2, 1) before anything is evicted.
4. A layout is judged by its measured report only: without one the answer is `MeasureFirst`.
5. Nothing fits: BUSY if it would once others are gone, else a refusal with the numbers.
"""

from collections.abc import Callable
from dataclasses import replace

from common import errors
from scheduler.core.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
    RefusalKind,
    Reports,
    Site,
    Verdict,
    find_sites,
)
from scheduler.core.eviction import PoolKey, choose_victims
from scheduler.core.faults import Fault
from scheduler.core.layouts import Layout
from scheduler.core.ledger import NOBODY, Available, Need, Promise, available, needs_of
from scheduler.core.memory import MemoryReport, bytes_text
from scheduler.core.policy import Policy
from scheduler.core.view import DeviceKind, NodeView

BAD_FILE = errors.BadModelFile.reason
CLASS_ORDER = (DeviceKind.GPU, DeviceKind.INTEGRATED, DeviceKind.CPU)


def plan_placement(
    request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy
) -> Placement | MeasureFirst | Refusal:
    """Choose where a model goes; the module's docstring has the order."""
    seen: dict[tuple[str, str], Candidate] = {}
    sites: list[Site] = []
    for site, verdict, reason in find_sites(request, view, policy):
        if verdict is Verdict.FITS:
            sites.append(site)
        else:
            seen[site.key] = _unjudged(site, verdict, reason)
    judge = _Judge(request, view, reports, policy)
    sites.sort(key=lambda site: (-judge.available_on(site, site.device.id, NOBODY).available_bytes, site.key))
    for device_class in CLASS_ORDER:
        of_class = [site for site in sites if site.device.kind is device_class]
        for evicting in (False, True):
            for slots in request.slot_steps:
                for site in of_class:
                    outcome = judge.try_site(site, slots, evicting=evicting)
                    match outcome:
                        case Candidate():
                            seen[site.key] = outcome
                        case Placement():
                            seen[site.key] = outcome.candidates[0]
                            return replace(outcome, candidates=tuple(seen.values()))
                        case MeasureFirst():
                            return outcome
    return _refuse(judge, view, seen)


def measure_key(request: PlacementRequest, node: NodeView, layout: Layout) -> MeasureKey:
    """Under which a report of this layout is remembered."""
    kinds = []
    for layers in layout.devices:
        device = node.device(layers.device_id)
        assert device is not None, "layouts name devices of their node"
        kinds.append((device.backend, device.description, layers.layer_count))
    return MeasureKey(
        model_digest=request.model_digest,
        engine_build=node.engine_build,
        device_kinds=tuple(kinds),
        layout=layout.without_devices(),
    )


class _Judge:
    """Compares need and room of one request, site by site."""

    def __init__(self, request: PlacementRequest, view: ClusterView, reports: Reports, policy: Policy) -> None:
        self.request = request
        self.view = view
        self.reports = reports
        self.policy = policy
        self._promises: dict[str, list[Promise]] = {}
        for promise in view.promises:
            self._promises.setdefault(promise.node_id, []).append(promise)
        self.broken = next((one for one in reports.values() if isinstance(one, Fault) and one.reason == BAD_FILE), None)

    def try_site(self, site: Site, slots: int, *, evicting: bool) -> Candidate | Placement | MeasureFirst:
        """Whether the model fits here with so many slots, if need be after evicting."""
        if self.broken is not None:  # the same bytes everywhere
            return _unjudged(site, Verdict.MEASURE_FAILED, self.broken.message)
        layout = self._layout(site, slots)
        key = measure_key(self.request, site.node, layout)
        report = self.reports.get(key)
        if report is None:
            hopeless = self._hopeless(site, slots, evicting=evicting)
            return hopeless or MeasureFirst(key=key, node_id=site.node.id, layout=layout)
        if isinstance(report, Fault):
            return _unjudged(site, Verdict.MEASURE_FAILED, report.message)
        needs = needs_of(site.node, layout, report, self.policy)
        if needs is None:
            return _unjudged(site, Verdict.MEASURE_FAILED, "the report does not belong to the layout")
        short_pools = self._short_pools(site, needs)
        victims: tuple[str, ...] | None = () if not short_pools(NOBODY) else None
        if victims is None and evicting:
            here = [one for one in self.view.evictable if any(pool[0] == site.node.id for pool in one.pool_bytes)]
            victims = choose_victims(here, short_pools)
        verdict = Verdict.SHORT_BYTES if victims is None else Verdict.FITS
        candidate = self._candidate(site, slots, needs, verdict)
        if victims is None:
            return candidate
        return self._placement(site, layout, report, victims, candidate)

    def available_on(self, site: Site, device_id: str, without: frozenset[str]) -> Available:
        """What a device of the site's node has room for."""
        device = site.node.device(device_id)
        assert device is not None, "needs name devices of their node"
        backoff = self.request.backoff.get((site.node.id, device_id), 0.0)
        if site.age_s() > self.policy.figures_stale_s:
            backoff += self.policy.backoff_step
        promises = self._promises.get(site.node.id, ())
        return available(site.node, device, promises, self.policy, without=without, backoff=backoff)

    def would_fit_alone(self, site_key: tuple[str, str], candidate: Candidate) -> bool:
        """Whether it would fit if everything else that we have promised were gone."""
        node = next(node for node in self.view.nodes if node.id == site_key[0])
        device = node.device(site_key[1])
        assert device is not None, "candidates name devices of their node"
        site = Site(node=node, device=device)
        everybody = frozenset(promise.placement_id for promise in self.view.promises)
        return all(
            need.total_bytes <= self.available_on(site, need.device_id, everybody).available_bytes
            for need in candidate.needs
        )

    def _layout(self, site: Site, slots: int) -> Layout:
        layout = self.request.layout.with_slots(slots)
        if site.device.kind is DeviceKind.CPU:
            return layout.without_devices()
        model = site.node.model(self.request.model_digest)
        assert model is not None, "sites have the file"
        return layout.on(site.device.id, model.layer_count + 1)

    def _hopeless(self, site: Site, slots: int, *, evicting: bool) -> Candidate | None:
        """Fewer slots do not make weights smaller, nor a failing measurement work: spare it then."""
        gone = frozenset(one.placement_id for one in self.view.evictable) if evicting else NOBODY
        for larger in self.request.slot_steps:
            if larger <= slots:
                continue
            layout = self._layout(site, larger)
            report = self.reports.get(measure_key(self.request, site.node, layout))
            if isinstance(report, Fault):
                return _unjudged(site, Verdict.MEASURE_FAILED, report.message)
            if report is None:
                continue
            needs = needs_of(site.node, layout, report, self.policy) or ()
            if any(n.weights_bytes > self.available_on(site, n.device_id, gone).available_bytes for n in needs):
                return self._candidate(site, larger, needs, Verdict.SHORT_BYTES)
        return None

    def _short_pools(self, site: Site, needs: tuple[Need, ...]) -> Callable[[frozenset[str]], frozenset[PoolKey]]:
        def short(gone: frozenset[str]) -> frozenset[PoolKey]:
            lacking = set()
            for need in needs:
                if need.total_bytes > self.available_on(site, need.device_id, gone).available_bytes:
                    device = site.node.device(need.device_id)
                    assert device is not None, "needs name devices of their node"
                    lacking.add((site.node.id, device.pool_id))
            return frozenset(lacking)

        return short

    def _candidate(self, site: Site, slots: int, needs: tuple[Need, ...], verdict: Verdict) -> Candidate:
        return Candidate(
            node_id=site.node.id,
            device_id=site.device.id,
            verdict=verdict,
            slots=slots,
            needs=needs,
            available=tuple(self.available_on(site, need.device_id, NOBODY) for need in needs),
        )

    @staticmethod
    def _placement(
        site: Site, layout: Layout, report: MemoryReport, victims: tuple[str, ...], candidate: Candidate
    ) -> Placement:
        return Placement(
            node_id=site.node.id,
            layout=layout,
            report=report,
            needs=candidate.needs,
            victims=victims,
            candidates=(candidate,),
        )


def _unjudged(site: Site, verdict: Verdict, reason: str) -> Candidate:
    return Candidate(node_id=site.node.id, device_id=site.device.id, verdict=verdict, slots=0, reason=reason)


def _refuse(judge: _Judge, view: ClusterView, seen: dict[tuple[str, str], Candidate]) -> Refusal:
    """Say why nothing was taken: wait, too large, broken, or nowhere to go; in this order."""
    candidates = tuple(seen.values())
    short = {key: one for key, one in seen.items() if one.verdict is Verdict.SHORT_BYTES}
    if any(judge.would_fit_alone(key, one) for key, one in short.items()):
        return Refusal(kind=RefusalKind.BUSY, message="waiting for memory", candidates=candidates)
    if any(one.verdict is Verdict.LOAD_IN_PROGRESS for one in candidates):
        return Refusal(kind=RefusalKind.BUSY, message="waiting for another load", candidates=candidates)
    if short:
        best = min(short.values(), key=lambda one: (one.short_bytes, one.node_id, one.device_id))
        return Refusal(kind=RefusalKind.INSUFFICIENT_MEMORY, message=_memory_text(best), candidates=candidates)
    failed = [one for one in candidates if one.verdict is Verdict.MEASURE_FAILED]
    if failed:
        fault = next((report for report in judge.reports.values() if isinstance(report, Fault)), None)
        return Refusal(kind=RefusalKind.MEASURE_FAILED, message=failed[0].reason, candidates=candidates, fault=fault)
    reasons = sorted({one.reason for one in candidates if one.reason})
    text = "; ".join(reasons) if view.nodes and reasons else "no node is known"
    return Refusal(kind=RefusalKind.NO_DEVICE, message=f"no device can take the model: {text}", candidates=candidates)


def _memory_text(candidate: Candidate) -> str:
    """The sentence that clients know, for the device that lacks most."""
    need, have = max(
        zip(candidate.needs, candidate.available, strict=True),
        key=lambda pair: pair[0].total_bytes - pair[1].available_bytes,
    )
    return (
        f"model requires more system memory ({bytes_text(need.total_bytes)}) "
        f"than is available ({bytes_text(have.available_bytes)})"
    )

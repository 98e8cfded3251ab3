"""Use of slots by tenants, counted by all gateways together. Pure: rounds instead of a clock, texts instead of Redis.

Each gateway reports what it gave to each flow since it first did, so a report that is lost or read twice changes
nothing. A gateway that is first heard of, also after an outage, adds nothing for what it reported before.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

from common.spec.bands import Band
from gateway.core.dispatch.fairness import Elsewhere, Flow

# Flows in a report, and its characters: those that were used last.
FLOWS_MAX = 256
REPORT_CHARACTERS_MAX = 64 * 1024
# Rounds after which a flow without news leaves the reports: others have read its last news several times.
ROUNDS_KEPT = 20

ModelFlow: TypeAlias = tuple[str, Flow]


@dataclass(slots=True)
class _OwnFlow:
    cost: float = 0.0  # since it is in the reports
    rounds: int = 0  # since the last news
    waited: bool = False  # for a slot, since the last report


@dataclass(slots=True)
class SharedUsage:
    """Use of slots at this gateway, to be reported, and the last reports of the others."""

    _own: dict[ModelFlow, _OwnFlow] = field(default_factory=dict)  # last news last
    _reports: dict[str, dict[ModelFlow, float]] = field(default_factory=dict)  # costs, by gateway

    def used(self, model: str, flow: Flow, cost: float) -> None:
        """Count cost that a flow was given here, or with a negative number did not need."""
        self._touch(model, flow).cost += cost

    def wait(self, model: str, flows: Iterable[Flow]) -> None:
        """Note flows whose requests wait for a slot of a running replica."""
        for flow in flows:
            self._touch(model, flow).waited = True

    def report(self) -> str:
        """Write the report of a round: a JSON list of model, tenant, band, cost, and 1 if it waits."""
        rows: list[str] = []
        characters = len("[]")
        for (model, flow), own in reversed(self._own.items()):
            row = json.dumps([model, flow.tenant, flow.band, round(own.cost, 3), int(own.waited)])
            characters += len(row) + len(",")
            if characters > REPORT_CHARACTERS_MAX:
                break
            rows.append(row)
            own.waited = False
            own.rounds += 1
        self._own = {key: own for key, own in self._own.items() if own.rounds < ROUNDS_KEPT}
        return f"[{','.join(rows)}]"

    def learn(self, texts: Mapping[str, str]) -> dict[str, Elsewhere]:
        """Return the news of all other gateways, by model; `texts` are the reports of those that are alive."""
        used: dict[str, dict[Flow, float]] = {}
        waiting: dict[str, set[Flow]] = {}
        reports = {}
        for gateway, text in texts.items():
            rows = _read(text)
            known = self._reports.get(gateway)
            reports[gateway] = {key: cost for key, (cost, _) in rows.items()}
            for (model, flow), (cost, waits) in rows.items():
                costs = used.setdefault(model, {})
                news = cost - known.get((model, flow), 0.0) if known is not None else 0.0
                if news:
                    costs[flow] = costs.get(flow, 0.0) + news
                if waits:
                    waiting.setdefault(model, set()).add(flow)
        self._reports = reports
        return {model: Elsewhere(costs, waiting.get(model, ())) for model, costs in used.items()}

    def _touch(self, model: str, flow: Flow) -> _OwnFlow:
        own = self._own.pop((model, flow), None) or _OwnFlow()
        own.rounds = 0
        self._own[model, flow] = own
        if len(self._own) > FLOWS_MAX:
            del self._own[next(iter(self._own))]
        return own


def _read(text: str) -> dict[ModelFlow, tuple[float, bool]]:
    """Return cost, and if it waits, of each flow of a report; nothing of one that a later build has written."""
    try:
        rows = json.loads(text)
        found = {
            (str(model), Flow(str(tenant), Band(band))): (float(cost), bool(waits))
            for model, tenant, band, cost, waits in rows[:FLOWS_MAX]
        }
    except (ValueError, TypeError, KeyError):
        return {}
    return found if all(isfinite(cost) for cost, _ in found.values()) else {}

"""State of this gateway: its settings, its queues, and the rights of the caller's key."""

from dataclasses import dataclass

from common.effective_settings import EffectiveSetting
from gateway.core.keys.keys import ALL_SCOPES
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service
from gateway.keys.visits import current_visit, may_use


@dataclass(frozen=True, slots=True)
class GatewayState:
    """Endpoints that need no other service."""

    service: Service

    async def config(self, exchange: Exchange) -> None:
        """GET /puna/v1/config: the settings in effect, without secrets."""
        rows = [_row(setting) for setting in self.service.settings]
        await exchange.respond_json({"process": "gateway", "version": self.service.version, "settings": rows})

    async def queues(self, exchange: Exchange) -> None:
        """GET /puna/v1/queue: for every model its waiting requests, their longest wait, and the rate of ends."""
        reports = self.service.inference.dispatcher.queue_reports()
        await exchange.respond_json(
            {
                "models": [
                    {
                        "model": report.model_name,
                        "depth": report.waiting,
                        "oldest_wait_s": report.oldest_wait_s,
                        "drain_rate": report.ends_per_s,
                    }
                    for report in reports
                    if may_use(report.model_name)
                ]
            }
        )

    async def whoami(self, exchange: Exchange) -> None:
        """GET /puna/v1/whoami: the rights of the caller's key, so that a page offers nothing that would be refused."""
        visit = current_visit()
        key = visit.key if visit is not None else None
        await exchange.respond_json(
            {
                "keys": key is not None,
                "key": key.id if key is not None else None,
                "owner": key.owner if key is not None else None,
                "scopes": sorted(str(scope) for scope in (key.scopes if key is not None else ALL_SCOPES)),
                "models": list(key.models) if key is not None and key.models else None,
                "version": self.service.version,
            }
        )


def _row(setting: EffectiveSetting) -> dict[str, str]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": str(setting.source),
        "variable": setting.variable,
        "effect": setting.text,
    }

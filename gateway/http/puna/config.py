"""GET /puna/v1/config: the settings of this gateway as they are in effect, without secrets."""

from dataclasses import dataclass

from common.effective_settings import EffectiveSetting
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service


@dataclass(frozen=True, slots=True)
class Config:
    """One endpoint."""

    service: Service

    async def respond(self, exchange: Exchange) -> None:
        """GET /puna/v1/config."""
        rows = [_row(setting) for setting in self.service.settings]
        await exchange.respond_json({"process": "gateway", "version": self.service.version, "settings": rows})


def _row(setting: EffectiveSetting) -> dict[str, str]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": str(setting.source),
        "variable": setting.variable,
        "effect": setting.text,
    }

"""GET /puna/v1/whoami: what the caller's key is good for, so that a page offers nothing that would be refused."""

from dataclasses import dataclass

from gateway.core.keys.keys import ALL_SCOPES
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service
from gateway.keys.visits import current_visit


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """One endpoint. Needs a key where keys are asked for, but no scope."""

    service: Service

    async def respond(self, exchange: Exchange) -> None:
        """GET /puna/v1/whoami."""
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

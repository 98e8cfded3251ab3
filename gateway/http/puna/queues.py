"""GET /puna/v1/queue: what waits at this gateway."""

from dataclasses import dataclass

from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service
from gateway.keys.visits import may_use


@dataclass(frozen=True, slots=True)
class Queues:
    """For operators."""

    service: Service

    async def list_all(self, exchange: Exchange) -> None:
        """Every model that was asked for here: how many requests wait, how long, and how many end a second."""
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

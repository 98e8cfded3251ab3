"""Exchange of tenants' use of slots with the other gateways, through Redis.

No request waits for it: a round has the deadline of each command to Redis, and after one that failed this gateway
counts for itself. Reports are totals, so a lost round loses nothing. `core.dispatch.shared_usage` writes and reads
them, `core.dispatch.fairness` counts.
"""

import asyncio

from common.ids import new_incarnation
from common.telemetry.logs import get_logger
from gateway import metrics
from gateway.keys.key_redis import KeyRedis, KeyStoreUnavailableError
from gateway.replicas.dispatch import Dispatcher

log = get_logger()

# Tenants drift apart by what all replicas compute in this time.
EXCHANGE_S = 0.25


async def exchange_shares(dispatcher: Dispatcher, redis: KeyRedis) -> None:
    """Exchange reports, until cancelled.

    The reports of a gateway that was silent for two seconds are gone; so are all while Redis is away.
    """
    gateway_id = new_incarnation()
    is_shared: bool | None = None
    while True:
        try:
            reports = await redis.exchange_shares(gateway_id, dispatcher.usage.report())
        except KeyStoreUnavailableError as error:
            if is_shared is not False:
                log.warning("shares.counted_alone", reason=str(error))
            is_shared, reports = False, {}
        else:
            if not is_shared:
                log.info("shares.counted_together", gateways=1 + len(reports))
            is_shared = True
        dispatcher.learn_shares(reports)
        metrics.SHARING_GATEWAYS.set(1 + len(reports))
        await asyncio.sleep(EXCHANGE_S)

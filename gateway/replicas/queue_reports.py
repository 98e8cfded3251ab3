"""Tells the scheduler how long requests wait here, so that it can load another replica of what is asked for most.

With it go requests that are refused because they have ended replicas: at once, and again for a while.
"""

from common.errors import PunaError
from common.ids import new_incarnation
from common.telemetry.logs import get_logger
from gateway.ports import Scheduler
from gateway.replicas.dispatch import Dispatcher
from gateway.replicas.poison import PoisonRequests
from protos import cluster_pb2, scheduler_pb2

log = get_logger()

REPORT_S = 1.0
# A wait that is shorter is no reason for anything, and every gateway would report all the time.
WAIT_TOLD_S = 0.5


async def report_queues(dispatcher: Dispatcher, scheduler: Scheduler) -> None:
    """Once a second while there is something to tell, and once more when no request waits; until cancelled."""
    gateway_id = new_incarnation()
    poisoned = dispatcher.pool.poisoned
    told = False
    while True:
        await poisoned.news_within(REPORT_S)
        queues, poison = _queues(dispatcher), _poison(poisoned)
        if not queues and not poison and not told:
            continue
        report = scheduler_pb2.ReportQueuesRequest(gateway_id=gateway_id, queues=queues, poison=poison)
        try:
            await scheduler.report_queues(report)
        except PunaError as error:
            log.debug("queues.untold", reason=error.reason, text=error.message)
        else:
            told = bool(queues)


def _poison(poisoned: PoisonRequests) -> list[scheduler_pb2.PoisonRequest]:
    return [
        scheduler_pb2.PoisonRequest(
            name=name,
            replicas=[
                cluster_pb2.PlacementRef(
                    placement_id=one.placement_id, generation=one.generation, incarnation=one.incarnation
                )
                for one in replicas
            ],
        )
        for name, replicas in poisoned.known()
    ]


def _queues(dispatcher: Dispatcher) -> list[scheduler_pb2.ModelQueue]:
    return [
        scheduler_pb2.ModelQueue(model_name=name, waiting=waiting, oldest_wait_ms=round(wait_s * 1000))
        for name, (waiting, wait_s) in dispatcher.oldest_waits_s().items()
        if wait_s >= WAIT_TOLD_S
    ]

"""Reports of waits to the scheduler, so that it can load another replica of the models in most demand.

They include requests that are refused because they have ended replicas: at once, and again for a while.
"""

from common.errors import PunaError
from common.ids import new_incarnation
from common.telemetry.logs import get_logger
from gateway.converters.generation import placement_to_proto
from gateway.replicas.dispatch import Dispatcher
from gateway.replicas.poison import PoisonRequests
from protos import scheduler_pb2
from scheduler.client import SchedulerClient

log = get_logger()

REPORT_S = 1.0
# A wait that is shorter is no reason for anything, and every gateway would report all the time.
WAIT_REPORTED_S = 0.5


async def report_queues(dispatcher: Dispatcher, scheduler: SchedulerClient) -> None:
    """Report once a second while requests wait, and once more when none does; until cancelled."""
    gateway_id = new_incarnation()
    poisoned = dispatcher.pool.poisoned
    had_queues = False
    while True:
        await poisoned.news_within(REPORT_S)
        queues, poison = _queues(dispatcher), _poison(poisoned)
        if not queues and not poison and not had_queues:
            continue
        report = scheduler_pb2.ReportQueuesRequest(gateway_id=gateway_id, queues=queues, poison=poison)
        try:
            await scheduler.report_queues(report)
        except PunaError as error:
            log.debug("queues.not_reported", reason=error.reason, text=error.message)
        else:
            had_queues = bool(queues)


def _poison(poisoned: PoisonRequests) -> list[scheduler_pb2.PoisonRequest]:
    return [
        scheduler_pb2.PoisonRequest(
            name=name,
            replicas=[placement_to_proto(one) for one in replicas],
        )
        for name, replicas in poisoned.known()
    ]


def _queues(dispatcher: Dispatcher) -> list[scheduler_pb2.ModelQueue]:
    return [
        scheduler_pb2.ModelQueue(model_name=name, waiting=waiting, oldest_wait_ms=round(wait_s * 1000))
        for name, (waiting, wait_s) in dispatcher.oldest_waits_s().items()
        if wait_s >= WAIT_REPORTED_S
    ]

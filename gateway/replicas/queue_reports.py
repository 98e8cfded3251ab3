"""Tells the scheduler how long requests wait here, so that it can load another replica of what is asked for most."""

import asyncio

from common.errors import PunaError
from common.ids import new_incarnation
from common.telemetry.logs import get_logger
from gateway.ports import Scheduler
from gateway.replicas.dispatch import Dispatcher
from protos import scheduler_pb2

log = get_logger()

REPORT_S = 1.0
# A wait that is shorter is no reason for anything, and every gateway would report all the time.
WAIT_TOLD_S = 0.5


async def report_queues(dispatcher: Dispatcher, scheduler: Scheduler) -> None:
    """Once a second while requests wait, and once more when none does; until cancelled."""
    gateway_id = new_incarnation()
    told = False
    while True:
        await asyncio.sleep(REPORT_S)
        queues = _queues(dispatcher)
        if not queues and not told:
            continue
        try:
            await scheduler.report_queues(scheduler_pb2.ReportQueuesRequest(gateway_id=gateway_id, queues=queues))
        except PunaError as error:
            log.debug("queues.untold", reason=error.reason, text=error.message)
        else:
            told = bool(queues)


def _queues(dispatcher: Dispatcher) -> list[scheduler_pb2.ModelQueue]:
    return [
        scheduler_pb2.ModelQueue(model_name=name, waiting=waiting, oldest_wait_ms=round(wait_s * 1000))
        for name, (waiting, wait_s) in dispatcher.oldest_waits_s().items()
        if wait_s >= WAIT_TOLD_S
    ]

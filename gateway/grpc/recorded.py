"""A request's line and metrics, written when it ends, however it does."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from common.errors import PunaError, RequestCanceled
from gateway.answers.record import RequestRecord


@contextmanager
def recording(record: RequestRecord) -> Iterator[None]:
    """Finish the record with what came of the work inside."""
    status = "CANCELLED"
    try:
        yield
        status = "OK"
    except RequestCanceled:
        raise
    except PunaError as error:
        record.error = status = error.reason
        raise
    except Exception:
        record.error = status = "internal_error"
        raise
    finally:
        record.finish(status)


async def recorded(events: AsyncIterator[Any], record: RequestRecord) -> AsyncIterator[Any]:
    """Pass events on; the record is finished with their end."""
    with recording(record):
        async for event in events:
            yield event

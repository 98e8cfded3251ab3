"""One JSON object per log event on standard error, with the request's id where there is one."""

import logging
import sys

import structlog
from structlog.typing import FilteringBoundLogger

# Without the values of local variables: they hold prompts, and keys.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure_logs(*, service: str, debug: bool = False) -> None:
    """Set up structlog and the standard library's logging for this process."""
    level = logging.DEBUG if debug else logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _TRACEBACKS,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries that log through the standard library (uvicorn, redis) speak only when something is wrong.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format='{"event": "%(name)s", "text": "%(message)s"}')


def get_logger() -> FilteringBoundLogger:
    """Return the logger of this process."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger

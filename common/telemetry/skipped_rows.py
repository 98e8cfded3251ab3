"""Rows of a table that a service cannot take: each is left out and named, and the rest of the table stays."""

from collections.abc import Mapping

from prometheus_client import Counter

from common.paths import printable
from common.telemetry.logs import get_logger

log = get_logger()

TEXT_CHARACTERS_MAX = 300  # of a name or a reason in the log
BAD_NAME = "not a valid model name"


class SkippedRows:
    """Rows that are skipped now. Tables come often: a row is logged and counted when it is first met."""

    def __init__(self, counter: Counter) -> None:
        """`counter` has one label, `table`."""
        self._counter = counter
        self._known: dict[str, Mapping[str, str]] = {}

    def note(self, table: str, skipped: Mapping[str, str], **fields: str) -> None:
        """Name what of a table is skipped, by the row's name with the reason; an empty mapping is a clean table.

        `fields` go into the log, and tell tables of several senders apart.
        """
        key = "/".join((table, *fields.values()))
        known = self._known.get(key, {})
        for name, reason in skipped.items():
            if known.get(name) != reason:
                self._counter.labels(table=table).inc()
                log.warning("row.skipped", table=table, name=_short(name), text=_short(reason), **fields)
        if skipped:
            self._known[key] = dict(skipped)
        else:
            self._known.pop(key, None)


def _short(text: str) -> str:
    return printable(text)[:TEXT_CHARACTERS_MAX]

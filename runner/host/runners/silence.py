"""Duration of a runner's silence, and the limits from which on it counts as silent, and as hung."""

import asyncio
from collections.abc import Callable

from common.clock import Clock
from common.telemetry.logs import get_logger
from runner.host.processes.process import ProcessHandle

log = get_logger()

SILENCE_LOOK_INTERVAL_S = 0.5
SILENT_AFTER_S = 2.5  # two missed pings
HUNG_AFTER_S = 10.0


class Silence:
    """Of one runner. Slow ones answer pings and are left alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard = False  # since the last look
        self._silence_s = 0.0

    def hear(self) -> None:
        """Note that the runner said something."""
        self._heard = True

    @property
    def is_long(self) -> bool:
        """Nothing more should be asked of it."""
        return self._silence_s > SILENT_AFTER_S

    async def grows_too_long(self, process: ProcessHandle, *, placement_id: str, changed: Callable[[], None]) -> bool:
        """Listen until the process has gone, or has answered nothing for HUNG_AFTER_S: then True."""
        was_long, looked_at_s = False, self._clock.now_s()
        while not process.exited.is_set():
            await asyncio.sleep(SILENCE_LOOK_INTERVAL_S)
            now_s = self._clock.now_s()
            self._silence_s = lengthen_silence(
                self._silence_s,
                elapsed_s=now_s - looked_at_s,
                heard=self._heard,
                look_interval_s=SILENCE_LOOK_INTERVAL_S,
            )
            self._heard, looked_at_s = False, now_s
            if self.is_long != was_long:
                was_long = not was_long
                log.warning("runner.silent" if was_long else "runner.answers", placement=placement_id)
                changed()
            if self._silence_s > HUNG_AFTER_S:
                log.error("runner.hung", placement=placement_id, silence_s=HUNG_AFTER_S)
                return True
        return False


def lengthen_silence(silence_s: float, *, elapsed_s: float, heard: bool, look_interval_s: float) -> float:
    """Return the silence after another look, `elapsed_s` after the last one; a look counts for two intervals at most.

    The time during which the listener itself did not run (stopped, starved, suspended) proves nothing about the other
    side and is not counted: a host that wakes after a minute must not kill its healthy runners.
    """
    return 0.0 if heard else silence_s + min(elapsed_s, 2 * look_interval_s)

"""The highest fence that this host has seen, on disk before the first act of a new term."""

from pathlib import Path

import orjson

from common.clock import Clock
from common.errors import InvalidRequest, StaleFence, StartupError
from common.fences import fence_max
from common.telemetry.logs import get_logger
from runner.core.host.fences import NO_FENCE, Fence, FenceVerdict, judge_fence
from runner.host.home import write_durably

log = get_logger()


class FenceStore:
    """Owned by the task that executes commands."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read what was kept. A number beyond the clock's limit stays stored and does not count while it is beyond.

        Raises:
            StartupError: the file is there and unreadable. Guessing a low fence would let an old leader command.
        """
        self._path = path
        self._clock = clock
        self.highest = NO_FENCE
        try:
            kept = orjson.loads(path.read_bytes())
            self.highest = Fence(number=int(kept["number"]), leader_id=str(kept["leader_id"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(f"cannot read the fence kept in {path}: {error}") from error
        number_max = fence_max(clock.wall_unix_s())
        if self.highest.number > number_max:
            log.warning("fence.set_aside", number=self.highest.number, number_max=number_max, path=str(path))

    def accept(self, fence: Fence) -> None:
        """Check a command's fence and remember it durably.

        Raises:
            StaleFence: another scheduler leads by now.
            InvalidRequest: the number is no fence that a scheduler can have, or this machine's clock is far behind.
        """
        number_max = fence_max(self._clock.wall_unix_s())
        match judge_fence(fence, highest=self.highest, number_max=number_max):
            case FenceVerdict.STALE:
                high_water = self.highest.number
                raise StaleFence(
                    f"fence {fence.number} is not valid any more, the highest seen is {high_water}",
                    high_water=high_water,
                )
            case FenceVerdict.BEYOND_CLOCK:
                raise InvalidRequest(
                    f"fence {fence.number} is more than a day ahead of the clock of this node, which allows at most"
                    f" {number_max}; if a scheduler sent it, set the clock of this node",
                    param="fence",
                )
            case _:
                pass
        if fence == self.highest:
            return
        write_durably(self._path, orjson.dumps({"number": fence.number, "leader_id": fence.leader_id}))
        self.highest = fence
        log.info("fence.raised", number=fence.number, leader=fence.leader_id)

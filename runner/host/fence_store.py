"""The highest fence that this host has seen, on disk before the first act of a new term."""

from pathlib import Path

import orjson

from common.clock import MS_PER_S, Clock
from common.errors import InvalidRequest, StaleFence, StartupError
from common.fences import fence_max
from common.paths import set_aside
from common.telemetry.logs import get_logger
from runner.core.host.fences import NO_FENCE, Fence, FenceVerdict, judge_fence
from runner.host.home import write_durably

log = get_logger()

# The clock that an earlier leader's fence came from may have been so far ahead of this node's.
CLOCKS_DIFFER_S = 60


class FenceStore:
    """Owned by the task that executes commands."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read what was kept. A number beyond the clock's limit stays stored and does not count while it is beyond.

        A corrupt file is set aside. Fences start from the clock, so the time of now is above those of all earlier
        leaders; the present one is refused once, and leads again with a higher fence.

        Raises:
            StartupError: the file is there and cannot be opened. Guessing a low fence would let an old leader command.
        """
        self._path = path
        self._clock = clock
        self.highest = NO_FENCE
        try:
            kept = orjson.loads(path.read_bytes())
            self.highest = Fence(number=int(kept["number"]), leader_id=str(kept["leader_id"]))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StartupError(f"cannot read the fence kept in {path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            log.error("fence.corrupt", path=str(path), set_aside=str(set_aside(path)), text=str(error))
            self._keep(Fence(number=int((clock.wall_unix_s() + CLOCKS_DIFFER_S) * MS_PER_S), leader_id=""))
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
        self._keep(fence)
        log.info("fence.raised", number=fence.number, leader=fence.leader_id)

    def _keep(self, fence: Fence) -> None:
        write_durably(self._path, orjson.dumps({"number": fence.number, "leader_id": fence.leader_id}))
        self.highest = fence

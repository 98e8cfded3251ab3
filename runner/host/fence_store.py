"""The highest fence that this host has seen, on disk before the first act of a new term."""

from pathlib import Path

import orjson

from common.errors import StaleFence, StartupError
from common.telemetry.logs import get_logger
from runner.core.host.fences import NO_FENCE, Fence, is_accepted
from runner.host.home import write_durably

log = get_logger()


class FenceStore:
    """Owned by the task that executes commands."""

    def __init__(self, path: Path) -> None:
        """Read what was kept.

        Raises:
            StartupError: the file is there and unreadable. Guessing a low fence would let an old leader command.
        """
        self._path = path
        self.highest = NO_FENCE
        try:
            kept = orjson.loads(path.read_bytes())
            self.highest = Fence(number=int(kept["number"]), leader_id=str(kept["leader_id"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartupError(f"cannot read the fence kept in {path}: {error}") from error

    def accept(self, fence: Fence) -> None:
        """Check a command's fence and remember it durably.

        Raises:
            StaleFence: another scheduler leads by now.
        """
        if not is_accepted(fence, highest=self.highest):
            raise StaleFence(f"fence {fence.number} is not valid any more, the highest seen is {self.highest.number}")
        if fence == self.highest:
            return
        write_durably(self._path, orjson.dumps({"number": fence.number, "leader_id": fence.leader_id}))
        self.highest = fence
        log.info("fence.raised", number=fence.number, leader=fence.leader_id)

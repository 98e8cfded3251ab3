"""A host one of whose background tasks ends with an error at SIGUSR1; all else is real."""

import asyncio
import signal
import sys
from unittest.mock import patch

from runner.__main__ import main
from runner.host import app

BUG = "a bug of a background task"


async def fail_at_signal(*_: object) -> None:
    """Stand in for the watch over unused files."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
    await asked.wait()
    raise RuntimeError(BUG)


if __name__ == "__main__":
    with patch.object(app, "watch_unused", fail_at_signal):
        sys.exit(main())

"""`puna down`: stop the cluster of a home from another terminal."""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from cli.cluster.home import Home, real_home, remove_short_path, sockets
from cli.cluster.leftovers import end_processes_of
from cli.cluster.lock import is_locked
from cli.cluster.process_table import ProcessEntry, send_signal
from cli.cluster.state_file import read_record, remove_record
from cli.errors import CommandFailed

# The sum of what the services may take, and what is left behind after them.
_STOPPED_WITHIN_S = 70.0
_LOOK_INTERVAL_S = 0.1


def take_down(home_directory: Path, *, say: Callable[[str], None]) -> None:
    """Stop the supervisor; without one, end what a killed one may have left.

    Raises:
        CommandFailed: it does not stop.
    """
    real = real_home(home_directory)
    home = Home(real=real, path=real)
    if not (real / "run").is_dir():
        say(f"nothing runs in {real}")
        return
    if is_locked(real):
        _stop_supervisor(home)
        say(f"stopped the cluster in {real}")
        return
    ended = asyncio.run(end_processes_of(home))
    for path in sockets(home):
        path.unlink(missing_ok=True)
    remove_record(real)
    remove_short_path(home)
    say(f"ended {ended} processes that were left in {real}" if ended else f"nothing runs in {real}")


def _stop_supervisor(home: Home) -> None:
    record = read_record(home.real)
    if record is None:
        raise CommandFailed(f"{home.real} is in use, but does not say by whom; try again in a moment")
    supervisor = ProcessEntry(pid=record.pid, parent_pid=0, start_ticks=record.start_ticks, zombie=False)
    send_signal(supervisor, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOPPED_WITHIN_S
    while is_locked(home.real):
        if time.monotonic() > deadline_s:
            raise CommandFailed(f"the cluster in {home.real} (pid {record.pid}) does not stop")
        time.sleep(_LOOK_INTERVAL_S)

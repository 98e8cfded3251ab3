"""`python -m tools.setup`: set .venv up; stages whose inputs have not changed are left as they are."""

import argparse
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.setup.console import Console
from tools.setup.machine import NotReady
from tools.setup.progress import duration
from tools.setup.record import Record, split_lock
from tools.setup.stages import ENGINE, LOG, RECORD, TITLES, Setup, StageFailed, due_stages, read_inputs

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = 130  # as shells count Ctrl-C


def main() -> int:
    """Run the stages that are due; the exit status is that of the command that failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.setup", description=__doc__)
    parser.add_argument("--then", default="", help="what make does after it")
    parser.add_argument(
        "--built", metavar="CMAKE_ARGS", help="note that the engine was built with these, by another tool"
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with _alone():
            return _set_up(arguments.then, arguments.built)
    except NotReady as error:
        print(f"Puna cannot be set up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted: the stages that ended are kept, and make goes on with the next", file=sys.stderr)
        return INTERRUPTED


def _set_up(then: str, built: str | None) -> int:
    venv = ROOT / ".venv"
    ready = venv / ".ready"
    lock = split_lock((ROOT / "requirements-dev.lock").read_text(encoding="utf-8"))
    # Without .ready every stage runs; pip is quick about what it finds installed.
    record = Record(venv / RECORD, trusted=ready.exists())
    if built is not None and venv.is_dir():
        record.begin(ENGINE, read_inputs(ROOT, lock, record, {"CMAKE_ARGS": built}).engine)
        record.finish(ENGINE)
    if built is not None:
        return 0
    inputs = read_inputs(ROOT, lock, record, os.environ)
    due = due_stages(record, inputs)
    if not due:
        return 0
    setup = Setup(ROOT, lock, record, inputs, os.environ)
    setup.check_machine(due)
    ready.unlink(missing_ok=True)
    console = Console(venv / LOG, width=shutil.get_terminal_size().columns)
    console.say(f"Setting up .venv: {', '.join(TITLES[stage] for stage in due)}{f'; then make {then}' if then else ''}")
    if ENGINE in due and setup.is_engine_missing():
        console.say("The engine, llama.cpp, is compiled here once: about 5 minutes on two cores")
    try:
        setup.run(due, console)
    except StageFailed as failed:
        console.fail(failed.status)
        return failed.status
    console.say(f"Set up in {duration(console.total_s())}{f'; next: make {then}' if then else ''}")
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Wait for another setup of this checkout; the kernel frees the lock of one that has died."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another setup of this checkout runs; waiting for it", file=sys.stderr)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


if __name__ == "__main__":
    sys.exit(main())

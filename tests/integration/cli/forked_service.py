"""A service, and its supervisor in a process of its own, for tests of services that are forked."""

import asyncio
import json
import os
import signal
import stat
import sys
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from cli.cluster import zygote as zygotes
from cli.cluster.process_table import become_subreaper
from cli.cluster.service import ServiceDied, Supervisor
from cli.cluster.zygote import ServiceZygote, fork_zygote
from tests.integration.cli.supervised import spec

MODULE = "tests.integration.cli.forked_service"


def facts() -> dict[str, object]:
    """Return what is the same in each start of this process."""
    main = sys.modules["__main__"]
    assert main.__spec__ is not None
    own = f"/proc/{os.getpid()}"
    opened = [int(entry.name) for entry in Path(f"{own}/fd").iterdir()]
    return {
        "words": sys.argv[1:],
        "module": main.__spec__.name,
        "first_path": sys.path[0],
        "cwd": str(Path.cwd()),
        "environment": dict(os.environ),
        "shown_environment": sorted(Path(f"{own}/environ").read_text().rstrip("\0").split("\0")),
        "shown_words": Path(f"{own}/cmdline").read_text(),
        "shown_name": Path(f"{own}/comm").read_text(),
        "leads": (os.getsid(0), os.getpgid(0)) == (os.getpid(), os.getpid()),
        "descriptors": sorted(number for number in opened if Path(f"{own}/fd/{number}").exists()),
        "reads_nothing": stat.S_ISCHR(os.fstat(0).st_mode) and not sys.stdin.read(),
        "writes": [str(Path(f"{own}/fd/{number}").readlink()) for number in (1, 2)],
        "threads": threading.active_count(),
        "handled": [signal.getsignal(number) is signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)],
    }


def serve(kind: str, mark: Path) -> None:
    """Be the service: show what it is; end with a status; or live until SIGTERM."""
    if kind == "facts":
        mark.with_suffix(".new").write_text(json.dumps({"parent": os.getppid(), "facts": facts()}) + "\n")
        mark.with_suffix(".new").rename(mark)
    if kind == "refuses":
        sys.exit("there is no sea")
    if kind == "fails":
        raise RuntimeError("the sea is dry")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with mark.open("a") as file:
        file.write("started\n")
        file.flush()
        ended.wait()
        file.write("stopped\n")


async def supervise(directory: Path, kind: str, zygote: ServiceZygote | None) -> None:
    """Supervise one service until standard input ends; show what the supervisor says."""
    mark = directory / "a.mark"
    service = replace(spec(directory, "a"), command=(sys.executable, "-m", MODULE, kind, str(mark), "ä \n"))
    supervisor = Supervisor([service], say=lambda text: print(text, flush=True), changed=lambda: None, zygote=zygote)
    try:
        await supervisor.start()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    except ServiceDied as died:
        print(died, flush=True)
    finally:
        await supervisor.stop(asyncio.Event())


def main(directory: Path, kind: str, how: str) -> None:
    """Fork the zygote first, as `puna up` does. `how`: forked, refused or starved (by the kernel), or spawned."""
    if how == "refused":
        refusal = OSError("the command line cannot be changed: Invalid argument")
        patch.object(zygotes, "show_command", side_effect=refusal).start()
    if how == "starved":
        fork, refusals = os.fork, iter([None, BlockingIOError("no more processes")])  # of the zygote's first request

        def fork_or_refuse() -> int:
            if refusal := next(refusals, None):
                raise refusal
            return fork()

        patch.object(os, "fork", fork_or_refuse).start()
    zygote = None if how == "spawned" else fork_zygote()
    assert (zygote is None) is (how == "spawned")
    become_subreaper()
    asyncio.run(supervise(directory, kind, zygote))


if __name__ == "__main__":
    if sys.argv[1] == "supervise":
        main(Path(sys.argv[2]), *sys.argv[3:])
    else:
        serve(sys.argv[1], Path(sys.argv[2]))

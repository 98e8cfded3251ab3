"""Stands in for `puna up` and `make up` in blocks of documents: the real command, started, awaited, left running.

Its process is noted in the file SERVERS, whose owner stops it. Everything else of `puna` and `make` is passed on.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import wait_until

UP_WITHIN_S = 100.0
READY = "Ctrl-C stops everything."


def main(program: str, words: list[str]) -> int:
    """Run it; `puna up` returns when it is ready, every other command when it has ended."""
    if "up" not in words[:1]:
        os.execv(program, [program, *words])  # nothing comes after it
    noted = Path(os.environ["SERVERS"])
    log = noted.with_name(f"up-{os.getpid()}.log")
    with log.open("w") as output:
        process = subprocess.Popen([program, *words], stdout=output, stderr=output, start_new_session=True)
    with noted.open("a") as servers:
        servers.write(f"{process.pid}\n")

    def ready() -> bool:
        return process.poll() is not None or READY in log.read_text()

    wait_until(ready, deadline_s=UP_WITHIN_S, what=f"{program} up is ready")
    print(log.read_text(), end="")
    return process.poll() or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

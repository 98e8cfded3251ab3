"""A `runner rpc` process as its host sees it: where it listens, what is allocated in it, and its end."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson

from common.errors import InternalError
from runner.core.host.environment import child_environment
from runner.core.host.leases import Share
from runner.host.processes.children import runner_command
from runner.host.processes.process import ProcessHandle

FACT_BYTES_MAX = 65_536


def lender_arguments(placement_id: str, shares: Sequence[Share]) -> list[str]:
    """Return the command line after `runner rpc`."""
    devices = [word for share in shares for word in ("--device", share.device_id)]
    limits = [
        word for share in shares if share.max_bytes for word in ("--max-bytes", f"{share.device_id}={share.max_bytes}")
    ]
    weights_bytes = sum(share.weights_bytes for share in shares)
    return [
        *devices,
        *limits,
        *("--placement", placement_id, "--weights-bytes", str(weights_bytes), "--end-with-stdin"),
    ]


class LenderProcess:
    """Started on construction. It ends with this host, whatever happens to us: its standard input ends then."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log_path: Path,
        on_fact: Callable[[dict[str, object]], None],
        environment: Mapping[str, str],
    ) -> None:
        """`on_fact` gets each line that it says: `address` first, then `device` and `used_bytes`.

        Raises:
            InternalError: the system refuses to start processes.
        """
        try:
            with log_path.open("ab") as log_file:
                child = subprocess.Popen(
                    runner_command("rpc", arguments),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log_file,
                    env={**child_environment(os.environ), **environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise InternalError(f"cannot start an rpc runner: {error}") from error
        assert child.stdin is not None  # asked for above
        assert child.stdout is not None
        # Both stay ours alone: duplicates, so that Popen's files can be closed here and now.
        self._stdin, self._facts = os.dup(child.stdin.fileno()), os.dup(child.stdout.fileno())
        child.stdin.close()
        child.stdout.close()
        self.process = ProcessHandle(child.pid, os.pidfd_open(child.pid), is_child=True)
        child.returncode = 0  # RunnerProcess reaps
        self._on_fact = on_fact
        self._pending = bytearray()
        asyncio.get_running_loop().add_reader(self._facts, self._read)

    def close(self) -> None:
        """After its end: give the descriptors back."""
        asyncio.get_running_loop().remove_reader(self._facts)
        os.close(self._facts)
        os.close(self._stdin)

    def _read(self) -> None:
        part = os.read(self._facts, FACT_BYTES_MAX)
        if not part:
            asyncio.get_running_loop().remove_reader(self._facts)
            return
        *lines, rest = bytes(self._pending + part).split(b"\n")
        self._pending = bytearray(rest[-FACT_BYTES_MAX:])
        for line in lines:
            try:
                fact = orjson.loads(line)
            except ValueError:
                continue
            if isinstance(fact, dict):
                self._on_fact(fact)

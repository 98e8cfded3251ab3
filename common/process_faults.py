"""Faults of a machine: how to make each happen, how to see that it happened, how to end it. Linux only.

Used by `puna chaos` and by the tests of faults. An unproven fault counts for nothing: check `has_happened`. Each ends
with the process that made it at the latest.
"""

import ctypes
import errno
import os
import shlex
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

# <sys/ptrace.h>, <sys/wait.h>
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_REAP_INTERVAL_S = 0.05
_PIECE_BYTES_MAX, _PIECE_BYTES_MIN = 2**30, 2**20


def process_state(pid: int, thread_id: int | None = None) -> str:
    """Return one letter as in ps, of a process or of one of its threads; empty: it does not exist."""
    path = Path(f"/proc/{pid}/stat" if thread_id is None else f"/proc/{pid}/task/{thread_id}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class InjectedFault(ABC):
    """Something that breaks."""

    @abstractmethod
    def inject(self) -> None:
        """Make it happen.

        Raises:
            OSError: the target does not exist, or may not be touched.
        """

    @abstractmethod
    def has_happened(self) -> bool:
        """Return True if the kernel shows the fault."""

    def heal(self) -> None:  # noqa: B027  # Killed has nothing to end
        """End it. Does nothing if it has not happened, or its target has ended."""


@dataclass(slots=True)
class ProcessFault(InjectedFault):
    """A fault of the process `pid`, which the caller may signal and trace."""

    pid: int


class Killed(ProcessFault):
    """SIGKILL. Its supervisor heals it."""

    def inject(self) -> None:
        """See InjectedFault."""
        os.kill(self.pid, signal.SIGKILL)

    def has_happened(self) -> bool:
        """See InjectedFault."""
        return process_state(self.pid) in ("", "Z", "X")


@dataclass(slots=True)
class Stopped(ProcessFault):
    """SIGSTOP: the process keeps its memory and its connections, and does nothing.

    A shell lets it go on when this process has ended without having done so.
    """

    _waker: "subprocess.Popen[bytes] | None" = None

    def inject(self) -> None:
        """See InjectedFault."""
        os.kill(self.pid, 0)
        self._waker = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -CONT "$0"', str(self.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.kill(self.pid, signal.SIGSTOP)

    def has_happened(self) -> bool:
        """See InjectedFault."""
        return process_state(self.pid) == "T"

    def heal(self) -> None:
        """See InjectedFault."""
        if self._waker is not None:
            self._waker.communicate()


@dataclass(slots=True)
class ThreadBlocked(ProcessFault):
    """One thread stands still, the others go on: as a call into a driver that never returns.

    A tracer stops it. The tracer is a thread of this process, so that the fault ends with this process at the latest.
    """

    thread: str  # as /proc has its name
    _thread_id: int = 0
    _released: threading.Event = field(default_factory=threading.Event)
    _tracer: threading.Thread | None = None
    _error: OSError | None = None

    def inject(self) -> None:
        """See InjectedFault."""
        self._thread_id = self._find()
        attached = threading.Event()
        self._tracer = threading.Thread(target=self._trace, args=(attached,), name="tracer", daemon=True)
        self._tracer.start()
        attached.wait()
        if self._error is not None:
            raise self._error

    def has_happened(self) -> bool:
        """See InjectedFault."""
        return process_state(self.pid, self._thread_id) == "t"

    def heal(self) -> None:
        """See InjectedFault."""
        self._released.set()
        if self._tracer is not None:
            self._tracer.join()

    def _find(self) -> int:
        for thread_id in sorted(int(entry.name) for entry in Path(f"/proc/{self.pid}/task").iterdir()):
            if Path(f"/proc/{self.pid}/task/{thread_id}/comm").read_text().strip() == self.thread:
                return thread_id  # the oldest: threads inherit the name of the one that made them
        raise ProcessLookupError(f"process {self.pid} has no thread {self.thread!r}")

    def _trace(self, attached: threading.Event) -> None:
        """Stop the thread until released. All calls for a traced thread must come from the thread that traces it."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        try:
            for request in (_SEIZE, _INTERRUPT):
                if libc.ptrace(request, self._thread_id, None, None) != 0:
                    number = ctypes.get_errno()
                    self._error = OSError(number, f"thread {self._thread_id} cannot be traced: {os.strerror(number)}")
                    return
        finally:
            attached.set()
        # A killed process is gone for its parent only when its tracer has taken note of the thread's end.
        while not self._released.wait(_REAP_INTERVAL_S):
            try:
                thread_id, status = os.waitpid(self._thread_id, os.WNOHANG | _WALL)
            except ChildProcessError:
                return
            if thread_id and not os.WIFSTOPPED(status):
                return
        libc.ptrace(_DETACH, self._thread_id, None, None)


@dataclass(slots=True)
class DiskFilled(InjectedFault):
    """The file system of a directory has no more than `leave_bytes`. The file has no name and goes with its process."""

    directory: Path
    leave_bytes: int
    _file: int = -1
    _filled_bytes: int = 0

    def inject(self) -> None:
        """See InjectedFault."""
        self._file = os.open(self.directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        piece = _PIECE_BYTES_MAX
        while piece >= _PIECE_BYTES_MIN and (room := self._free_bytes() - self.leave_bytes) >= _PIECE_BYTES_MIN:
            try:
                os.posix_fallocate(self._file, self._filled_bytes, min(piece, room))
                self._filled_bytes += min(piece, room)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2

    def has_happened(self) -> bool:
        """See InjectedFault."""
        return self._free_bytes() <= self.leave_bytes + _PIECE_BYTES_MIN

    def heal(self) -> None:
        """See InjectedFault."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _free_bytes(self) -> int:
        room = os.statvfs(self.directory)
        return room.f_frsize * (room.f_bfree if os.geteuid() == 0 else room.f_bavail)


@dataclass(slots=True)
class LinkBroken(InjectedFault):
    """Packets from and to another machine are dropped: all, or those above a rate. Needs root and iptables.

    A shell takes the rules away when this process has ended without having done so.
    """

    address: str  # of IPv4 or IPv6
    bytes_s: int = 0  # that pass; 0: nothing
    _healer: "subprocess.Popen[bytes] | None" = None

    def inject(self) -> None:
        """See InjectedFault."""
        undo = "; ".join(shlex.join(self._words("-D", rule)) for rule in self._rules())
        self._healer = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; {undo}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rule in self._rules():
            done = subprocess.run(self._words("-I", rule), capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise OSError(errno.EPERM, " ".join(done.stderr.split()) or "iptables failed")

    def has_happened(self) -> bool:
        """See InjectedFault."""
        checks = (self._words("-C", rule) for rule in self._rules())
        return all(subprocess.run(check, capture_output=True, check=False).returncode == 0 for check in checks)

    def heal(self) -> None:
        """See InjectedFault."""
        if self._healer is not None:
            self._healer.communicate()

    def _rules(self) -> list[list[str]]:
        return [[*end, self.address, *self._limit(end[0]), "-j", "DROP"] for end in (["INPUT", "-s"], ["OUTPUT", "-d"])]

    def _limit(self, chain: str) -> list[str]:
        if not self.bytes_s:
            return []
        name = ["--hashlimit-name", f"puna-{os.getpid()}-{chain}"]  # of the table that counts the bytes
        burst = ["--hashlimit-burst", f"{max(2 * self.bytes_s, 2**20)}b"]
        return ["-m", "hashlimit", *name, "--hashlimit-above", f"{self.bytes_s}b/s", *burst]

    def _words(self, act: str, rule: list[str]) -> list[str]:
        return ["ip6tables" if ":" in self.address else "iptables", "-w", "5", act, *rule]

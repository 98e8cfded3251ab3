"""A wrong wall clock for one running process. Linux on x86-64 only.

Programs read clocks through code that the kernel maps into each of them (vdso(7)). A process has a copy of its own as
soon as that is written to: here with code that asks the kernel and adds some seconds. Clocks that measure durations
stay right, and so does everything that the kernel itself stamps.
"""

import ctypes
import errno
import os
import platform
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.process_faults import ProcessFault, process_state

SKEW_S_MAX = 2**31 - 1
_STOPS_WITHIN_S = 2.0
_LOOK_S = 0.001


@dataclass(slots=True)
class ClockWrong(ProcessFault):
    """The wall clock of a process is off by `skew_s`. A process of its own puts it right when this one ends."""

    skew_s: int
    _healer: "subprocess.Popen[str] | None" = None

    def inject(self) -> None:
        """See InjectedFault."""
        if platform.machine() != "x86_64":
            raise OSError(errno.EOPNOTSUPP, "wrong clocks are for x86-64 only")
        changed = self._changed()
        original = {address: _read(self.pid, address, len(code)) for address, code in changed.items()}
        words = [f"{address}:{changed[address].hex()}:{code.hex()}" for address, code in original.items()]
        self._healer = subprocess.Popen(
            [sys.executable, "-m", "common.wrong_clock", str(self.pid), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._healer.stdout is not None
        self._healer.stdout.readline()  # it lives
        _write(self.pid, changed)

    def has_happened(self) -> bool:
        """See InjectedFault."""
        try:
            return all(_read(self.pid, address, len(code)) == code for address, code in self._changed().items())
        except OSError:
            return False

    def heal(self) -> None:
        """See InjectedFault."""
        if self._healer is not None:
            self._healer.communicate()

    def _changed(self) -> dict[int, bytes]:
        """Return the code for each function that reads the wall clock, by its address in the process."""
        ours, theirs = _vdso(os.getpid())[0], _vdso(self.pid)[0]
        library = ctypes.CDLL("linux-vdso.so.1")
        return {
            (ctypes.cast(library[name], ctypes.c_void_p).value or 0) - ours + theirs: code
            for name, code in _code(self.skew_s).items()
        }


def _code(skew_s: int) -> dict[str, bytes]:
    """Return machine code for each function; none is longer than what it replaces."""
    added = struct.pack("<i", skew_s)
    return {
        # mov eax, 228; syscall; test eax, eax; jne end; test edi, edi; je add; cmp edi, 5 (CLOCK_REALTIME_COARSE);
        # jne end; add: add qword [rsi], skew; end: ret
        "__vdso_clock_gettime": bytes.fromhex("b8e40000000f0585c0751085ff740583ff057507488106") + added + b"\xc3",
        # mov eax, 96; syscall; test rdi, rdi; je end; add qword [rdi], skew; end: ret
        "__vdso_gettimeofday": bytes.fromhex("b8600000000f054885ff7407488107") + added + b"\xc3",
        # mov eax, 201; syscall; add rax, skew; test rdi, rdi; je end; mov [rdi], rax; end: ret
        "__vdso_time": bytes.fromhex("b8c90000000f054805") + added + bytes.fromhex("4885ff7403488907c3"),
    }


def _vdso(pid: int) -> tuple[int, int]:
    """Return where the kernel's code lies in a process."""
    found = re.search(r"^([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(errno.EOPNOTSUPP, "the process reads its clocks without the kernel's code")
    return int(found[1], 16), int(found[2], 16)


def _read(pid: int, address: int, size: int) -> bytes:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(size)


def _write(pid: int, pieces: Mapping[int, bytes]) -> None:
    """Change the code of a process while it is stopped, and no thread is within it."""
    deadline_s = time.monotonic() + _STOPS_WITHIN_S
    start, end = _vdso(pid)
    while True:
        os.kill(pid, signal.SIGSTOP)
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
            while not all(process_state(pid, int(one.name)) in ("T", "") for one in threads):
                _wait(deadline_s)
            if not any(start <= _instruction(one) < end for one in threads):
                with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
                    for address, code in pieces.items():
                        memory.seek(address)
                        memory.write(code)
                return
        finally:
            os.kill(pid, signal.SIGCONT)
        _wait(deadline_s)


def _wait(deadline_s: float) -> None:
    if time.monotonic() > deadline_s:
        raise OSError(errno.EBUSY, "the process cannot be stopped outside of what reads its clocks")
    time.sleep(_LOOK_S)


def _instruction(thread: Path) -> int:
    """Return where a stopped thread goes on; 0: it has ended."""
    try:
        return int((thread / "syscall").read_text().split()[-1], 16)
    except (FileNotFoundError, ProcessLookupError):
        return 0


def main() -> None:
    """Put the code back once standard input ends: PID, and ADDRESS:CHANGED:ORIGINAL for each function."""
    pid = int(sys.argv[1])
    changed: dict[int, bytes] = {}
    original: dict[int, bytes] = {}
    for word in sys.argv[2:]:
        address, *code = word.split(":")
        changed[int(address)], original[int(address)] = map(bytes.fromhex, code)
    print(flush=True)
    sys.stdin.read()
    # Of another process that has its id by now, nothing is changed.
    if all(_read(pid, address, len(code)) == code for address, code in changed.items()):
        _write(pid, original)


if __name__ == "__main__":
    main()

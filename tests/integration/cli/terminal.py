"""A command on a terminal of its own."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
ANSWERED_WITHIN_S = 150.0
# Makes standard input the controlling terminal, so that its Ctrl-C becomes a signal, and becomes the command.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


class Terminal:
    """A command on a terminal of its own, 100 columns wide. `raw` is everything that it wrote, escapes included."""

    def __init__(self, home: Path, /, *arguments: str, **environment: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self._text = b""
        self.raw = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, sys.executable, "-m", "cli.main", *arguments],
            cwd=ROOT,
            env={**os.environ, "PUNA_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "100", **environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def wait_for(self, text: str) -> str:
        """Read until the text appears, and return everything up to it, without escapes; what follows is kept."""
        assert self._appears(text, ANSWERED_WITHIN_S), f"{text!r} did not appear in {self._text!r}"
        before, _, self._text = self._text.partition(text.encode())
        return (before + text.encode()).decode().replace("\r\n", "\n")

    def interrupt(self, text: str) -> str:
        """Type Ctrl-C once the command waits for keys, and wait for the text that it leads to.

        Python hears one that falls between its prompt and its wait for keys only with the next one.
        """
        wait_until(self._sleeps, deadline_s=ANSWERED_WITHIN_S, what="the command waits for keys")
        self.type(CTRL_C)
        return self.wait_for(text)

    def _sleeps(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "S"

    def rest(self) -> str:
        """Everything until the command ends."""
        while data := self._read():
            self._text += data
        self.process.wait(ANSWERED_WITHIN_S)
        return _ESCAPE.sub(b"", self._text).decode().replace("\r\n", "\n")

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)

    def _appears(self, text: str, within_s: float) -> bool:
        deadline_s = time.monotonic() + within_s
        while text.encode() not in self._text:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._master], [], [], max(0.0, left_s))
            data = self._read() if ready else b""
            if not data:
                return False
            self._text = _ESCAPE.sub(b"", self._text + data)
        return True

    def _read(self) -> bytes:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return b""
        self.raw += data
        return data

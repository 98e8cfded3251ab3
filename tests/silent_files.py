"""A file system that answers no question of some kinds until it is let: what a network mount does that is gone.

It speaks the kernel's FUSE protocol by itself, because no library does so on request. Needs root.
"""

import contextlib
import ctypes
import errno
import os
import select
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LOOKUP, GETATTR, READ = 1, 3, 15
_FORGET, _OPEN, _RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR = 2, 14, 18, 25, 26, 27, 28, 29
_INTERRUPT, _BATCH_FORGET = 36, 42
_IN, _OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ROOT, _FIRST = 1, 2  # numbers of nodes
_FOLDER, _FILE = 0o040755, 0o100644
_FORCE_DETACH = 1 | 2


@dataclass(kw_only=True)
class SilentFiles:
    """One mounted directory with a few files. `silent` are the operations that get no answer."""

    files: Mapping[str, bytes]
    silent: frozenset[int]
    descriptor: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    held: list[tuple[int, int, int, bytes]] = field(default_factory=list)

    def answer(self) -> None:
        """Answer everything, also what was asked before."""
        with self.lock:
            self.silent = frozenset()
            held, self.held = self.held, []
        for request in held:
            self._serve(*request)

    def run(self) -> None:
        """Serve until the file system is gone."""
        while True:
            try:
                select.select([self.descriptor], [], [])
                request = os.read(self.descriptor, 1 << 20)
            except (OSError, ValueError):
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            with self.lock:
                if opcode in self.silent:
                    self.held.append((opcode, unique, node, request[_IN.size :]))
                    continue
            self._serve(opcode, unique, node, request[_IN.size :])

    def _serve(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        answer = self._answer(opcode, node, body)
        code, content = (-answer, b"") if isinstance(answer, int) else (0, answer)
        with contextlib.suppress(OSError):  # the one that asked is gone
            os.write(self.descriptor, _OUT.pack(_OUT.size + len(content), code, unique) + content)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes | int:  # noqa: PLR0911
        names = list(self.files)
        match opcode:
            case _ if opcode == _INIT:
                return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, 0, *[0] * 7)
            case _ if opcode == LOOKUP:
                name = body.rstrip(b"\0").decode()
                if name not in names:
                    return errno.ENOENT
                number = names.index(name) + _FIRST
                return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attributes(number)
            case _ if opcode == GETATTR:
                return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
            case _ if opcode in (_OPEN, _OPENDIR):
                return struct.pack("<QII", 0, 0, 0)
            case _ if opcode == READ:
                _, offset, size = struct.unpack_from("<QQI", body)
                return self.files[names[node - _FIRST]][offset : offset + size]
            case _ if opcode == _READDIR:
                _, offset, _ = struct.unpack_from("<QQI", body)
                return b"".join(_entry(index, name) for index, name in enumerate(names) if index >= offset)
            case _ if opcode in (_RELEASE, _FLUSH, _RELEASEDIR):
                return b""
            case _:
                return errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        size = len(list(self.files.values())[node - _FIRST]) if node != _ROOT else 0
        mode = _FOLDER if node == _ROOT else _FILE
        return struct.pack("<6Q10I", node, size, 0, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _entry(index: int, name: str) -> bytes:
    text = name.encode()
    entry = struct.pack("<QQII", index + _FIRST, index + 1, len(text), 8) + text
    return entry.ljust(-(-len(entry) // 8) * 8, b"\0")


@contextmanager
def silent_files(mount: Path, files: Mapping[str, bytes], *, silent: frozenset[int]) -> Iterator[SilentFiles]:
    """Mount it for as long as the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    mount.mkdir()
    try:
        descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"silent", os.fsencode(mount), b"fuse", 0, options) != 0:
        os.close(descriptor)
        pytest.skip(f"file systems cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    served = SilentFiles(files=files, silent=silent, descriptor=descriptor)
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        libc.umount2(os.fsencode(mount), _FORCE_DETACH)  # everything that waits fails now
        thread.join(10)
        os.close(descriptor)

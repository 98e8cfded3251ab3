"""Connections from chosen users alone, for a server in C that accepts those of every user of the machine.

The kernel passes each `accept` of the server's thread to another thread of this process. That one accepts in its place,
closes connections of other users, and answers with the first that may stay, so the server never sees the others.

Source: seccomp_unotify(2); struct seccomp_notif and seccomp_notif_resp in linux/seccomp.h.
"""

import contextlib
import ctypes
import errno
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Collection
from fcntl import ioctl
from pathlib import Path

from common.network import connected_user

_SET_FILTER, _NEW_LISTENER = 1, 8  # of seccomp
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # of ioctl
_NOTICE, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_FIRST_ARGUMENT = 6  # in a notice
# What the kernel calls the processor, and the numbers of seccomp, accept and accept4.
_MACHINES = {"x86_64": (0xC000003E, 317, (43, 288)), "aarch64": (0xC00000B7, 277, (202, 242))}
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # of BPF
_NUMBER, _MACHINE = 0, 4  # places in struct seccomp_data
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000


def accept_users(users: Collection[int]) -> bool:
    """Accept connections of these users of the machine alone, in this thread and those that it begins later.

    The process must have given up new privileges. False: the kernel cannot do it, and every user is accepted.
    """
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    machine, seccomp, (accept, accept4) = _MACHINES[os.uname().machine]
    steps = (
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_IF_EQUAL, 0, 3, machine),  # others are refused by the filter of `confinement`
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 2, 0, accept),
        (_JUMP_IF_EQUAL, 1, 0, accept4),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    )
    program = b"".join(struct.pack("=HBBI", *step) for step in steps)
    content = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("@HP", len(steps), ctypes.addressof(content))
    # It must begin before the filter, which holds for threads that begin later.
    notices: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_accept_all, args=(notices, users), name="accept", daemon=True).start()
    descriptor = ctypes.CDLL(None).syscall(seccomp, _SET_FILTER, _NEW_LISTENER, filtered)
    notices.put(descriptor)
    return bool(descriptor >= 0)


def _accept_all(notices: "queue.SimpleQueue[int]", users: Collection[int]) -> None:
    descriptor = notices.get()
    while descriptor >= 0:
        notice = bytearray(_NOTICE.size)
        try:
            ioctl(descriptor, _RECEIVE, notice)
        except (InterruptedError, FileNotFoundError):  # a signal ended the call
            continue
        number, *_ = fields = _NOTICE.unpack(notice)
        accepted, error = -1, 0
        try:
            accepted = _accept(fields[_FIRST_ARGUMENT], users)
        except OSError as failure:
            error = -(failure.errno or errno.EIO)
        try:
            ioctl(descriptor, _SEND, _ANSWER.pack(number, 0 if error else accepted, error, 0))
        except FileNotFoundError:  # likewise; the server calls again
            if accepted >= 0:
                os.close(accepted)


def _accept(listener: int, users: Collection[int]) -> int:
    """Return the descriptor of the next connection of one of the users."""
    with socket.socket(fileno=os.dup(listener)) as server:
        while True:
            connection, peer = server.accept()
            with contextlib.closing(connection):
                table = Path("/proc/self/net/tcp").read_text()
                if connected_user(table, peer, connection.getsockname()) in users:
                    return connection.detach()

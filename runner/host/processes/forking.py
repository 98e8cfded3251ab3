"""A request to a process that forks, as its asker makes it. What the fork does: `runner.forked`."""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from runner.core.host.forks import GO, ForkRequest
from runner.host.processes.process import until_readable

# A fork takes milliseconds. A process that is stopped or starved for longer is given up.
FORK_TIMEOUT_S = 5.0
_PID_BYTES_MAX = 16


class Fork(NamedTuple):
    """A fork that goes on; pidfd and socket are the asker's to close."""

    pid: int
    pidfd: int
    answer: socket.socket  # for what is said about it later


async def request_fork(control: socket.socket, request: ForkRequest, *, given: Sequence[int]) -> Fork | None:
    """Have a fork made that becomes the command of the request; None: it ended before.

    Without a fork nothing of the request is ever run: a fork waits until it is heard of, and ends otherwise.

    Args:
        control: does not block; each message of it is a request.
        request: the command.
        given: the fork gets copies: its standard streams, then what `request.places` names.

    Raises:
        TimeoutError: no fork is heard of.
        OSError: the other process is gone, or this one has no descriptors left.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    fork: Fork | None = None
    try:
        with theirs, os.fdopen(os.memfd_create("fork", os.MFD_CLOEXEC), "w+b") as content:
            content.write(request.encode())
            content.seek(0)  # flushes, too
            socket.send_fds(control, [b"f"], [content.fileno(), theirs.fileno(), *given])
        fork = await _hear(ours)
    finally:
        if fork is None:
            ours.close()
    return fork


async def _hear(answer: socket.socket) -> Fork | None:
    """Wait until a fork says that it leads its session, and let it go on; None: it ended before.

    Raises:
        TimeoutError: it does not say so.
    """
    async with asyncio.timeout(FORK_TIMEOUT_S):
        await until_readable(answer.fileno())
    pid, pidfds, _, _ = socket.recv_fds(answer, _PID_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
    if not pidfds:
        return None
    try:
        answer.send(GO)
    except OSError:
        os.close(pidfds[0])
        raise
    return Fork(int(pid), pidfds[0], answer)

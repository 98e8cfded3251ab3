"""Unix sockets belong to one user: only that user and root can listen on them, and only they can connect.

gRPC does not say which user is at the other end, so the file system has to: a socket in a directory that only its
owner can write cannot be another user's, and one without rights for others cannot be connected to by them.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.network import UNIX_PREFIX

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def socket_fault(address: str) -> str:
    """Say why the socket at `unix:/path` may be another user's; empty: it cannot be."""
    path = Path(address.removeprefix(UNIX_PREFIX))
    try:
        status = path.parent.stat()
    except OSError:
        return ""  # nothing is there; connecting and listening fail by themselves
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path.parent} belongs to user {status.st_uid}; use a directory of this user for sockets"
    if status.st_mode & _OTHERS_WRITE:
        return f"{path.parent} can be written by other users; `chmod go-w` it"
    return ""


@contextmanager
def private_umask() -> Iterator[None]:
    """Create files, and so sockets, without rights for others."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)

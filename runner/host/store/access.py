"""Errors of the disk as domain errors."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import DiskFull, PermissionDenied

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Translate the errors of changes to a store.

    Raises:
        DiskFull: no room.
        PermissionDenied: the store is read-only, or of another user.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"no room in {directory}: {error.strerror}") from error
        raise PermissionDenied(f"the model store {directory} cannot be written: {error.strerror}") from error

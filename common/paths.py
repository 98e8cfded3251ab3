"""Paths as people have them, with names that no terminal shows and files that never answer; files in one step."""

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

PRIVATE_MODE = 0o600


def printable(text: object) -> str:
    r"""Return a path or a text with undecodable bytes and unprintable characters escaped, as `\xff` and `\n`."""
    decoded = str(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in decoded)


def open_regular(path: Path, flags: int = 0) -> int:
    """Return a descriptor to read a regular file from, never waiting for the other end of a FIFO or for a device.

    Raises:
        OSError: it is not here, cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, os.strerror(code) if stat.S_ISDIR(mode) else "not a regular file", str(path))


def replace_file(path: Path, content: bytes, *, mode: int = PRIVATE_MODE, group: int | None = None) -> None:
    """Replace a file as a whole, so that no reader sees half of it; private while it is written.

    `group`: one of this process that gets it; None: the one that new files have.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if group is not None:
                os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be read to `NAME.corrupt-TIME`, the time of its last change; `puna doctor` names it."""
    aside = path.with_name(f"{path.name}.corrupt-{int(path.lstat().st_mtime)}")
    path.replace(aside)
    return aside

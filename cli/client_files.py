"""The files that other programs read their settings from: found, merged and written."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.core.connect.client import Setting
from cli.core.connect.merging import Unmergeable, changes, merged
from cli.errors import CommandFailed, ExitCode
from common.paths import PRIVATE_MODE, replace_file

BACKUP_SUFFIX = ".bak-puna"
_FILE_BYTES_MAX = 4 << 20  # settings are typed by people


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file as it is and as it is to be. `before` is None where there is none."""

    path: Path
    before: str | None
    after: str
    lines: tuple[str, ...]  # what differs, without secrets

    @property
    def backup(self) -> Path:
        """Return the path of the backup that is made before a change."""
        return self.path.with_name(self.path.name + BACKUP_SUFFIX)


def file_path(setting: Setting, environment: Mapping[str, str]) -> Path:
    """Return where the client looks for the file.

    Raises:
        CommandFailed: it is below the home directory, and there is none.
    """
    for variable, below in setting.moved_by:
        if folder := environment.get(variable):
            return Path(folder).expanduser() / below / setting.file
    if not setting.folder.startswith("~"):
        return Path(setting.path)
    if environment.get("HOME") == "":
        raise CommandFailed(f"HOME is empty: {setting.path} cannot be found", ExitCode.USAGE)
    try:
        return Path(setting.path).expanduser()
    except RuntimeError as error:
        raise CommandFailed(f"there is no home directory: set HOME to find {setting.path}", ExitCode.USAGE) from error


def planned_change(setting: Setting, text: str, path: Path) -> FileChange:
    """Return the file with the text merged into it; nothing is written.

    Raises:
        CommandFailed: it cannot be read, or has a form that is not changed.
    """
    before = _read(path)
    try:
        after = merged(setting, text, before)
    except Unmergeable as error:
        raise CommandFailed(f"{path}: {error}; not changed, merge the text by hand") from error
    return FileChange(path=path, before=before, after=after, lines=tuple(changes(before or "", after)))


def write_change(change: FileChange, *, secret: str) -> None:
    """Replace the file in one step, after a copy of what it says now. With a secret in it, it is its owner's alone.

    Raises:
        CommandFailed: it cannot be written.
    """
    path = Path(os.path.realpath(change.path))  # a link stays one
    private = bool(secret) and secret in change.after
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = PRIVATE_MODE if private else 0o666 & ~_umask()
        if change.before is not None:
            mode = stat.S_IMODE(path.stat().st_mode)
            if not mode & 0o222 or not os.access(path, os.W_OK):
                raise CommandFailed(f"{change.path} is read-only; nothing is changed")
            replace_file(Path(os.path.realpath(change.backup)), change.before.encode(), mode=mode & PRIVATE_MODE)
            mode = mode & PRIVATE_MODE if private else mode
        replace_file(path, change.after.encode(), mode=mode)
    except OSError as error:
        raise CommandFailed(f"{error.filename or change.path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CommandFailed(f"{path} is no file; nothing is changed")
            content = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _FILE_BYTES_MAX:
        raise CommandFailed(f"{path} has more than {_FILE_BYTES_MAX} bytes; nothing is changed")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{path} is no text in UTF-8; nothing is changed") from error


def _umask() -> int:
    mask = os.umask(0o077)  # there is no other way to ask for it
    os.umask(mask)
    return mask

"""The file of an audit log: several writers, rotation, cut lines."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.audit import file as audit_file
from common.audit.chain import check_chain
from common.audit.file import AuditFile

WRITER = """
import sys
from pathlib import Path
from common.audit.file import AuditFile
file = AuditFile(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
number, other = 0, sys.argv[4].encode()
while number < int(sys.argv[3]) or other not in file.path.read_bytes():
    file.append({"writer": sys.argv[2], "number": number}, is_durable=False)
    number += 1
"""
LINES_EACH = 400


def lines_in(*paths: Path) -> list[bytes]:
    return [line for path in paths for line in path.read_bytes().splitlines()]


def append(path: Path, *numbers: int) -> None:
    for number in numbers:
        AuditFile(path).append({"number": number})


def test_two_processes_write_one_chain_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(LINES_EACH), f'"writer":"{other}"'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, other in ("ab", "ba")  # each writes until it has seen the other
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [writer.communicate(timeout=60) and writer.returncode for writer in writers] == [0, 0]
    lines = lines_in(path)
    assert check_chain(lines) == len(lines)
    for name in ("a", "b"):
        numbers = [entry["number"] for entry in map(json.loads, lines) if entry["writer"] == name]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= LINES_EACH


def test_a_process_that_starts_after_the_file_was_moved_goes_on_with_its_chain(tmp_path: Path) -> None:
    path, older = tmp_path / "audit", tmp_path / "older"
    append(path, 1, 2)
    path.rename(older)
    append(path, 3)
    assert check_chain(lines_in(older, path)) == 3


def test_a_long_file_is_numbered_and_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "FILE_BYTES_MAX", 400)
    monkeypatch.setattr(audit_file, "KEPT_FILES", 3)
    path = tmp_path / "audit"
    append(path, *range(20))
    kept = [tmp_path / name for name in ("audit.3", "audit.2", "audit.1", "audit")]
    lines = lines_in(*(one for one in kept if one.exists()))
    assert check_chain(lines) == len(lines)
    assert json.loads(lines[-1])["number"] == 19
    assert {one.name for one in tmp_path.iterdir()} <= {"audit", "audit.1", "audit.2", "audit.3", "audit.lock"}
    assert all(one.stat().st_size < 800 for one in kept if one.exists())
    assert {one.stat().st_mode & 0o777 for one in tmp_path.iterdir()} == {0o600}


def test_a_line_that_a_crash_cut_off_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    append(path, 1)
    with path.open("ab") as file:
        file.write(b'{"time":"2026')
    append(path, 2)
    assert check_chain(lines_in(path)) == 2


def test_a_writer_does_not_wait_for_ever_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "LOCKED_WITHIN_S", 0.0)
    path = tmp_path / "audit"
    append(path, 1)
    with (tmp_path / "audit.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process keeps its lock"):
            append(path, 2)
    append(path, 3)
    assert check_chain(lines_in(path)) == 2

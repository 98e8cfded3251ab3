import os
from pathlib import Path

import pytest

from cli.cluster.home import (
    SOCKET_NAME_BYTES_MAX,
    SOCKET_PATH_BYTES_MAX,
    HomeInUse,
    home_lock,
    is_locked,
    prepare_home,
    remove_short_path,
    with_short_path,
)
from cli.cluster.log_files import KEPT_RUNS, last_line, rotate_log, shorten_log
from common.errors import StartupError
from tests.full_disk import small_disk


def test_the_sockets_of_a_home_belong_to_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o755)
    home = prepare_home(tmp_path)

    assert home.run.stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(StartupError, match=r"cannot use .*file as home"):
        prepare_home(path)


def test_a_long_path_gets_a_short_private_name_for_its_sockets(tmp_path: Path) -> None:
    real = tmp_path / ("x" * 100)
    home = with_short_path(prepare_home(real))

    longest = home.run / ("s" * SOCKET_NAME_BYTES_MAX)
    assert len(os.fsencode(longest)) <= SOCKET_PATH_BYTES_MAX
    assert home.run.resolve() == real / "run"
    assert home.path.parent.stat().st_mode & 0o777 == 0o700
    assert home.logs == real / "logs"
    remove_short_path(home)
    assert not home.path.parent.exists()


def test_the_short_name_is_found_again_after_a_crash(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / ("x" * 100))
    first = with_short_path(home)

    assert with_short_path(home) == first
    remove_short_path(first)


def test_a_recorded_short_name_that_leads_elsewhere_is_not_used(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / ("x" * 100))
    first = with_short_path(home)
    first.path.unlink()
    first.path.symlink_to(tmp_path)
    second = with_short_path(home)

    assert second.path != first.path
    assert second.path.resolve() == home.real
    remove_short_path(second)
    first.path.unlink()
    first.path.parent.rmdir()


def test_a_path_that_reads_as_a_url_escape_gets_a_plain_name(tmp_path: Path) -> None:
    home = with_short_path(prepare_home(tmp_path / "a%20b"))

    assert "%" not in str(home.path)
    remove_short_path(home)


def test_a_home_has_one_owner_at_a_time(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    with home_lock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(HomeInUse), home_lock(tmp_path):
            pass

    assert not is_locked(tmp_path)


def test_logs_of_earlier_runs_are_numbered_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for run in range(KEPT_RUNS + 2):
        rotate_log(path)
        path.write_text(f"run {run}\n")

    found = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
    assert found == {"a.log": "run 4\n", "a.log.1": "run 3\n", "a.log.2": "run 2\n", "a.log.3": "run 1\n"}


def test_a_log_that_grows_too_long_begins_anew_under_the_writers_hand(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with path.open("ab", buffering=0) as writer:
        writer.write(b"long enough\n")
        shorten_log(path, bytes_max=5)
        writer.write(b"new\n")
        shorten_log(path, bytes_max=5)

    assert path.read_text() == "new\n"
    assert path.with_name("a.log.1").read_text() == "long enough\n"


def test_a_log_that_is_too_long_for_a_full_disk_gives_its_room_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        path = disk.path / "a.log"
        path.write_bytes(b"x" * 100_000)
        disk.fill()
        with pytest.raises(OSError, match="No space"):
            shorten_log(path, bytes_max=5)
        assert [(entry.name, entry.stat().st_size) for entry in disk.path.glob("a.log*")] == [("a.log", 0)]


def test_the_last_words_of_a_log_are_its_last_line_with_something_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("first\nthe reason \n\n")

    assert last_line(path) == "the reason"
    assert last_line(tmp_path / "none.log") is None

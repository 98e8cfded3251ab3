"""The directory of a host."""

import os
from pathlib import Path

import pytest

from common.errors import StartupError
from runner.host.home import LOG_BYTES_MAX, LOG_END_BYTES, LOGS_KEPT, HostHome, write_durably


def test_two_hosts_cannot_own_one_directory(tmp_path: Path) -> None:
    with HostHome(tmp_path), pytest.raises(StartupError, match="another host already runs"):
        HostHome(tmp_path)
    with HostHome(tmp_path):
        pass


def test_the_nodes_id_is_drawn_once_and_kept(tmp_path: Path) -> None:
    with HostHome(tmp_path) as home:
        drawn = home.node_id("")
    with HostHome(tmp_path) as home:
        assert home.node_id("") == drawn


def test_a_wanted_id_wins_and_must_be_printable(tmp_path: Path) -> None:
    with HostHome(tmp_path) as home:
        assert home.node_id("gpu-7") == "gpu-7"
        with pytest.raises(StartupError, match="PUNA_NODE_ID"):
            home.node_id("../x")


def test_a_path_that_is_too_long_for_sockets_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="too long"):
        HostHome(tmp_path / ("d" * 90))


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot use"):
        HostHome(tmp_path / "file" / "home")


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    with HostHome(tmp_path) as home:
        for number in range(LOGS_KEPT + 3):
            (home.logs_directory / f"runner-{number:03}.log").write_text("")
        (home.logs_directory / "scheduler.log").write_text("")
        home.prune_logs()
        assert len(list(home.logs_directory.iterdir())) == LOGS_KEPT + 1
        assert (home.logs_directory / "scheduler.log").exists()


def test_a_durable_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"old")
    write_durably(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_that_has_grown_too_long_keeps_its_end_and_its_runner_appends(tmp_path: Path) -> None:
    with HostHome(tmp_path) as home, (home.logs_directory / "runner-p-1.log").open("ab", buffering=0) as log:
        log.truncate(LOG_BYTES_MAX)
        home.cut_logs()
        assert log.seek(0, os.SEEK_END) == LOG_BYTES_MAX
        log.write(b"the end\n")
        home.cut_logs()
        log.write(b"more\n")
        path = home.logs_directory / "runner-p-1.log"
        assert path.stat().st_size == LOG_END_BYTES + len(b"more\n")
        assert path.read_bytes().endswith(b"\0the end\nmore\n")

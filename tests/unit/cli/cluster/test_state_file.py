import asyncio
from pathlib import Path

from cli.cluster.home import ClusterRecord, ServiceRecord, StateFile, read_record, remove_record, write_record
from tests.full_disk import small_disk
from tests.waiting import wait_until

RECORD = ClusterRecord(
    pid=1,
    start_ticks=2,
    version="0.1.0",
    started_at_unix_s=3.0,
    http_address="127.0.0.1:1",
    grpc_address="127.0.0.1:2",
    discovery_address="unix:/d",
    scheduler_address="unix:/s",
    redis_url="unix:///r",
    home="/h",
    run="/h/run",
    ready=True,
    services={
        "a": ServiceRecord(state="running", pid=4, start_ticks=5, restarts=0, metrics_address="127.0.0.1:6", log="/l")
    },
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_record(tmp_path, RECORD)

    assert read_record(tmp_path) == RECORD


def test_a_file_of_another_version_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for text in ("", "[]", "{}", '{"services": {"a": {}}}', '{"services": {}, "pid": 1, "colour": "blue"}'):
        (tmp_path / "run" / "puna.json").write_text(text)
        assert read_record(tmp_path) is None


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    remove_record(tmp_path)

    assert read_record(tmp_path) is None


async def test_a_state_that_a_full_disk_cannot_take_is_written_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        (disk.path / "run").mkdir()
        said: list[str] = []
        file = StateFile(disk.path, lambda: RECORD, said.append)
        disk.fill()
        file.write()
        file.write()
        assert read_record(disk.path) is None
        disk.free()
        keeping = asyncio.create_task(file.keep_written())
        await asyncio.to_thread(
            wait_until, lambda: read_record(disk.path) is not None, deadline_s=30, what="the file is written"
        )
        keeping.cancel()
    path = disk.path / "run" / "puna.json"
    assert said == [
        f"{path} is out of date and is written later: No space left on device",
        f"{path} is up to date again",
    ]

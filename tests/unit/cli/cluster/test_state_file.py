from pathlib import Path

from cli.cluster.home import ClusterRecord, ServiceRecord, read_record, remove_record, write_record

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

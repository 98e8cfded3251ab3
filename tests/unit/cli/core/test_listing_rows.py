from datetime import UTC, datetime

from cli.core.listing_rows import (
    DEVICE_HEADINGS,
    LOADED_HEADINGS,
    alias_rows,
    crashed_rows,
    device_rows,
    loaded_rows,
    model_rows,
    model_table,
)
from cli.output import fitting_columns, plain_lines

NOW_UNIX_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
DIGEST = "a" * 64


def test_each_replica_has_a_row_with_its_own_bytes_and_end() -> None:
    replica = {
        "node": "n1",
        "state": "ready",
        "context_length": 4096,
        "slots_total": 8,
        "slots_busy": 3,
        "expires_at": "2026-01-01T00:04:00Z",
        "devices": [{"name": "CUDA0", "bytes": 2_000_000}, {"name": "CUDA1", "bytes": 1_000_000}],
    }
    model = {"name": "demo:latest", "digest": DIGEST, "size": 9, "replicas": [replica, {**replica, "node": "n2"}]}

    rows = loaded_rows([model], now_unix_s=NOW_UNIX_S)

    assert rows[0] == (
        "demo:latest",
        "a" * 12,
        "3.0 MB",
        "CUDA0, CUDA1",
        "4096",
        "3/8",
        "n1",
        "ready",
        "in 4 minutes",
    )
    assert [row[6] for row in rows] == ["n1", "n2"]


def test_a_server_that_names_no_replicas_still_gives_a_row() -> None:
    model = {"name": "m", "digest": DIGEST, "size": 5000, "expires_at": "2318-01-01T00:00:00Z", "context_length": 2048}

    assert loaded_rows([model], now_unix_s=NOW_UNIX_S) == [
        ("m", "a" * 12, "5.0 kB", "CPU", "2048", "", "", "", "forever")
    ]


def test_a_device_shows_where_its_free_figure_comes_from_and_how_old_it_is() -> None:
    device = {
        "name": "CPU",
        "library": "CPU",
        "total_bytes": 8_000_000_000,
        "free_bytes": 0,
        "free_source": "cgroup",
        "free_age_ms": 250,
    }

    rows = device_rows(
        [{"id": "n1", "state": "ready", "devices": [device], "runners": [{}, {}]}], now_unix_s=NOW_UNIX_S
    )

    assert rows == [
        ("n1", "ready", "CPU", "CPU", "", "8.0 GB", "0 B", "cgroup, 0.2 s ago", "", "", "", "", "2", *[""] * 5)
    ]


def test_a_device_shows_its_state_why_and_what_is_promised_and_kept_free() -> None:
    device = {
        "name": "CUDA0",
        "library": "CUDA",
        "state": "excluded",
        "state_reason": "its test failed: signal 6",
        "total_bytes": 8_000_000_000,
        "free_bytes": 5_000_000_000,
        "free_source": "promised",
        "free_age_ms": 0,
        "trust": "predicted",
        "promised_bytes": 3_000_000_000,
        "reserve_bytes": 1_000_000_000,
        "max_bytes": 6_000_000_000,
        "speed_bytes_s": 550e9,
        "speed_source": "replicas",
        "vitals": {
            "utilization": 0.934,
            "temperature_c": 84,
            "power_w": None,
            "throttled": ["thermal"],
            "ecc_corrected": 5,
            "ecc_uncorrected": 1,
            "last_xid": 79,
            "last_xid_at_unix_s": NOW_UNIX_S - 240,
        },
        "lent_to": [{"placement": "p7", "model": "big:latest", "node": "n2"}],
    }
    store = {"free_bytes": 9_000_000_000, "total_bytes": 10_000_000_000}
    saved = [
        {"tier": "ram", "bytes": 120_000_000, "max_bytes": 1_200_000_000, "states": 3},
        {"tier": "disk", "bytes": 0, "max_bytes": 8_000_000_000, "states": 0},
    ]
    node = {"id": "n1", "state": "ready", "devices": [device], "store": store, "states": saved}
    (row,) = device_rows([node], now_unix_s=NOW_UNIX_S)
    assert dict(zip(DEVICE_HEADINGS, row, strict=True)) == {
        "NODE": "n1",
        "STATE": "ready",
        "DEVICE": "CUDA0",
        "KIND": "CUDA",
        "DEVICE STATE": "excluded",
        "TOTAL": "8.0 GB",
        "FREE": "5.0 GB",
        "READ FROM": "promised, 0.0 s ago, predicted",
        "PROMISED": "3.0 GB",
        "RESERVED": "1.0 GB",
        "LIMIT": "6.0 GB",
        "SPEED": "550 GB/s, replicas",
        "RUNNERS": "0",
        "STORE FREE": "9.0 GB",
        "SAVED": "ram 120 MB of 1.2 GB, disk 0 B of 8.0 GB",
        "LENT TO": "placement p7 of model big:latest on node n2",
        "CARD": "93% busy, 84 °C, throttled: thermal, 1 uncorrected ECC errors, Xid 79 4 minutes ago",
        "REASON": "its test failed: signal 6",
    }


def test_a_node_without_devices_is_listed() -> None:
    assert device_rows([{"id": "n1", "state": "degraded"}], now_unix_s=NOW_UNIX_S)[0][:2] == ("n1", "degraded")


def test_a_model_shows_what_it_can_do() -> None:
    model = {
        "name": "demo:latest",
        "digest": DIGEST,
        "size": 3_400_000,
        "details": {"parameter_size": "3.1M", "quantization_level": "Q8_0"},
        "capabilities": ["completion", "tools"],
        "modified_at": "2025-12-31T22:00:00Z",
    }

    assert model_rows([model], now_unix_s=NOW_UNIX_S) == [
        ("demo:latest", "a" * 12, "3.4 MB", "3.1M", "Q8_0", "completion, tools", "2 hours ago")
    ]


def test_plain_columns_line_up_and_an_empty_cell_is_a_dash() -> None:
    assert plain_lines(("NAME", "SIZE"), [("long name", ""), ("x", "5 B")]) == [
        "NAME       SIZE",
        "long name  -",
        "x          5 B",
    ]


def test_an_alias_whose_model_is_gone_says_so() -> None:
    rows = alias_rows(
        [
            {"alias": "fast:latest", "model": "m:latest", "exists": True},
            {"alias": "old", "model": "gone", "exists": False},
        ]
    )
    assert rows == [("fast:latest", "m:latest", ""), ("old", "gone", "no node has it")]


def test_a_narrow_terminal_goes_without_the_columns_that_say_least() -> None:
    headings, rows = ("NODE", "KIND", "FREE"), [("node-a", "CPU", "5 GB")]

    def shown(width: int) -> list[str]:
        return [headings[column] for column in fitting_columns(headings, rows, width=width, spare=("KIND", "FREE"))]

    assert shown(18) == ["NODE", "KIND", "FREE"]
    assert shown(17) == ["NODE", "FREE"]
    assert shown(11) == ["NODE"]
    assert shown(3) == ["NODE"]


def test_models_that_cannot_be_used_say_why_in_a_column_of_their_own() -> None:
    good, broken = {"name": "a:latest"}, {"name": "b:latest", "error": "/m/b.gguf: a FIFO, not a regular file"}
    headings, rows = model_table([good, broken], now_unix_s=NOW_UNIX_S)
    assert headings[-1] == "REASON"
    assert [(row[0], row[-1]) for row in rows] == [("a:latest", ""), ("b:latest", broken["error"])]
    headings, rows = model_table([good], now_unix_s=NOW_UNIX_S)
    assert "REASON" not in headings
    assert len(rows[0]) == len(headings)


def test_runners_that_do_not_answer_are_counted_apart() -> None:
    runners = [{"state": "not_responding"}, {"state": "ready"}]
    (row,) = device_rows([{"id": "n1", "devices": [{"name": "CPU"}], "runners": runners}], now_unix_s=NOW_UNIX_S)
    assert "2 (1 silent)" in row


def test_a_model_that_crashes_has_a_row_among_what_is_loaded_and_one_of_its_node() -> None:
    row = {"model": "m:latest", "node": "n1", "crashes": 4, "error": "signal 9"}
    row["retry_at_unix_ms"] = round((NOW_UNIX_S + 3) * 1000)
    node = {"id": "n1", "state": "ready", "devices": [{"name": "CPU"}], "crash_rows": [row]}

    (loaded,) = crashed_rows([row], now_unix_s=NOW_UNIX_S)
    _, crashed = device_rows([node], now_unix_s=NOW_UNIX_S)

    assert len(loaded) == len(LOADED_HEADINGS)
    assert (loaded[0], loaded[6], loaded[7]) == (
        "m:latest",
        "n1",
        "crashed 4 times in a row, next try in 3 seconds",
    )
    assert len(crashed) == len(DEVICE_HEADINGS)
    assert (crashed[0], crashed[2]) == ("n1", "")
    assert crashed[-1] == "m:latest crashed 4 times in a row, next try in 3 seconds: signal 9"

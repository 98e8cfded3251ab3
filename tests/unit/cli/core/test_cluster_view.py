from typing import Any

from cli.core.cluster_view import ClusterItems
from cli.core.top_rows import bar, device_uses, headline, model_rows, request_rows, spark_line

GIB = 1024**3


def device(**more: Any) -> dict[str, Any]:
    holds = [{"model": "a", "weights_bytes": GIB, "cache_bytes": GIB // 2, "graph_bytes": 0}]
    fields = {"name": "GPU0", "state": "ok", "total_bytes": 8 * GIB, "free_bytes": 5 * GIB, "holds": holds}
    return {**fields, **more}


def view(**sections: Any) -> ClusterItems:
    made = ClusterItems()
    made.apply_event("snapshot", sections)
    return made


def test_changes_are_followed() -> None:
    made = view(models={"a": {"name": "a"}, "b": {"name": "b"}}, requests={})

    made.apply_event(
        "change", {"models": {"set": {"c": {"name": "c"}}, "gone": ["a"]}, "requests": {"set": {"1": {"id": "r"}}}}
    )

    assert [model["name"] for model in made.models] == ["b", "c"]
    assert [request["id"] for request in made.requests] == ["r"]


def test_what_is_not_known_changes_nothing() -> None:
    made = view(models={"a": {"name": "a"}})

    made.apply_event("end", {})
    made.apply_event("change", {"models": {"gone": ["never there"]}})

    assert [model["name"] for model in made.models] == ["a"]


def test_it_is_complete_when_nodes_were_heard_of_and_rates_measured_since() -> None:
    old, new = {"1000": {"at_unix_ms": 1000}}, {"samples": {"set": {"2000": {"at_unix_ms": 2000}}}}
    heard, away = {"status": {"nodes_at_unix_ms": 5}}, {"status": {"scheduler_error": "model_unavailable"}}

    for status, complete in ((heard, True), (away, True), ({"status": {"nodes_at_unix_ms": None}}, False)):
        made = view(gateway=status, samples=old)
        assert not made.is_complete  # that sample may be hours old
        made.apply_event("change", new)
        assert made.is_complete is complete


def test_the_json_has_the_newest_figures() -> None:
    made = view(samples={"1000": {"at_unix_ms": 1000}, "999": {"at_unix_ms": 999}})

    assert made.as_json("http://x")["figures"] == {"at_unix_ms": 1000}
    assert view().as_json("http://x")["figures"] is None


def test_memory_is_that_of_models_that_of_others_and_free() -> None:
    (use,) = device_uses(view(nodes={"n": {"id": "n", "state": "ready", "devices": [device()]}}))

    assert (use.models_bytes, use.others_bytes, use.free_bytes) == (GIB + GIB // 2, GIB + GIB // 2, 5 * GIB)
    assert use.row()[:3] == ("n", "GPU0", "ok")


def test_models_never_hold_more_than_is_taken() -> None:
    (use,) = device_uses(view(nodes={"n": {"id": "n", "state": "ready", "devices": [device(free_bytes=8 * GIB)]}}))

    assert (use.models_bytes, use.others_bytes) == (0, 0)


def test_a_silent_node_says_so_on_its_devices() -> None:
    (use,) = device_uses(view(nodes={"n": {"id": "n", "state": "suspect", "devices": [device(trust="stale")]}}))

    assert (use.state, use.note) == ("suspect", "figures are old")


def test_bars_always_fill_their_width_and_show_the_smallest_share() -> None:
    (use,) = device_uses(
        view(
            nodes={
                "n": {"id": "n", "state": "ready", "devices": [device(total_bytes=1000 * GIB, free_bytes=997 * GIB)]}
            }
        )
    )

    assert bar(use, 20) == (1, 1, 18)
    for width in range(3, 60):
        assert sum(bar(use, width)) == width


def test_a_device_without_size_has_an_empty_bar() -> None:
    (use,) = device_uses(
        view(nodes={"n": {"id": "n", "state": "ready", "devices": [device(total_bytes=0, free_bytes=0)]}})
    )

    assert bar(use, 10) == (0, 0, 10)


def test_busy_models_come_first_and_idle_ones_only_when_asked_for() -> None:
    loaded = {"state": "ready", "node": "n", "slots_busy": 1, "slots_total": 4, "context_length": 2048}
    made = view(
        models={
            "idle": {"name": "idle", "replicas": []},
            "slow": {"name": "slow", "replicas": [loaded], "tokens_per_s": 1.0},
            "fast": {"name": "fast", "replicas": [loaded, loaded], "tokens_per_s": 9.0, "waiting": 2, "running": 1},
        }
    )

    rows = model_rows(made, idle_too=False)
    assert [row[0] for row in rows] == ["fast", "slow"]
    assert rows[0] == ("fast", "2 × ready", "n", "2/8", "2", "1", "9.0", "2048")
    assert [row[0] for row in model_rows(made, idle_too=True)] == ["fast", "slow", "idle"]


def test_a_load_shows_how_far_it_is() -> None:
    loading = {"state": "loading", "fraction": 0.5, "load_seconds_left": 3.2, "node": "n"}

    (row,) = model_rows(view(models={"a": {"name": "a", "replicas": [loading]}}), idle_too=False)

    assert row[1] == "loading 50%, 3 s left"


def test_a_load_without_a_place_tells_what_it_waits_for() -> None:
    model = {"name": "a", "replicas": [], "waiting": 1, "load": {"waits_for": "memory that b holds"}}

    (row,) = model_rows(view(models={"a": model}), idle_too=False)

    assert row[1] == "waits for memory that b holds"


def test_requests_tell_their_state_and_age() -> None:
    made = view(
        requests={
            "2": {
                "id": "req_0123456789abcdef",
                "model": "m",
                "state": "queued",
                "progress": 3,
                "started_unix_ms": 2000,
            },
            "1": {
                "id": None,
                "model": "m",
                "state": "answering",
                "first_token_ms": 12.3,
                "tokens": 4,
                "started_unix_ms": 0,
            },
        }
    )

    first, second = request_rows(made, now_unix_ms=5000)
    assert first[2:5] == ("answering", "12 ms", "4")
    assert second == ("456789abcdef", "m", "queued, position 3", "", "0", "", "", "3 s")


def test_the_headline_says_that_nothing_came_instead_of_zero() -> None:
    sample = {"at_unix_ms": 1, "tokens_per_s": 2.0, "first_token_ms": None}

    assert headline(view()) == "measuring"
    assert "first token none came" in headline(view(samples={"1": sample}))


def test_sparks_are_scaled_to_the_highest_and_keep_the_newest() -> None:
    assert spark_line([0, 1, 8], 10) == " ▁█"
    assert spark_line([8, 1, 0], 2) == "█ "
    assert spark_line([], 5) == ""
    assert spark_line([0, 0], 5) == "  "

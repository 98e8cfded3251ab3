"""Rates, paces and changes that the page shows."""

from typing import Any

from gateway.core.ui.figures import LoadPaces, PageCounters, figures_between
from gateway.core.ui.views import changes_between, view_for


def test_rates_are_what_grew_between_two_readings() -> None:
    before = PageCounters(at_s=10.0, ended=4, tokens={"a": 100, "b": 7}, prompt_tokens=50)
    after = PageCounters(at_s=12.0, ended=5, tokens={"a": 140, "b": 7, "c": 20}, prompt_tokens=60)
    figures = figures_between(before, after, [0.1, 0.3])
    assert (figures.requests_per_s, figures.tokens_per_s, figures.prompt_tokens_per_s) == (0.5, 30.0, 5.0)
    assert figures.model_tokens_per_s == {"a": 20.0, "c": 10.0}
    assert figures.first_token_ms == 200.0


def test_without_a_first_token_there_is_no_time_for_one() -> None:
    assert figures_between(PageCounters(at_s=0.0), PageCounters(at_s=1.0), []).first_token_ms is None


def test_what_is_left_of_a_load_follows_from_its_pace() -> None:
    paces = LoadPaces()
    assert paces.seconds_left("a", 0.1, 100.0) is None
    assert paces.seconds_left("a", 0.11, 101.0) is None  # too little to tell
    assert paces.seconds_left("a", 0.5, 104.0) == 5.0


def test_a_load_that_begins_again_has_a_new_pace() -> None:
    paces = LoadPaces()
    paces.seconds_left("a", 0.5, 100.0)
    assert paces.seconds_left("a", 0.0, 110.0) is None
    assert paces.seconds_left("a", 0.5, 111.0) == 1.0
    paces.keep_only([])
    assert paces.seconds_left("a", 0.9, 120.0) is None


def test_changes_name_what_differs_and_what_is_gone() -> None:
    before = {"nodes": {"a": {"free": 1}, "b": {"free": 2}, "c": {"free": 3}}, "models": {"m": {"size": 1}}}
    after = {"nodes": {"a": {"free": 1}, "b": {"free": 5}, "d": {"free": 4}}, "models": {"m": {"size": 1}}}
    assert changes_between(before, after) == {"nodes": {"set": {"b": {"free": 5}, "d": {"free": 4}}, "gone": ["c"]}}
    assert changes_between(after, after) == {}


VIEW: dict[str, dict[str, dict[str, Any]]] = {
    "gateway": {"status": {"version": "1"}},
    "nodes": {
        "n": {
            "id": "n",
            "runners": [{"model": "secret"}],
            "crash_rows": [{"model": "secret", "crashes": 3}, {"model": "mine", "crashes": 4}],
            "devices": [
                {
                    "id": "gpu",
                    "holds": [
                        {"placement": "p", "model": "secret", "weights_bytes": 5},
                        {"placement": "q", "model": "mine", "weights_bytes": 6},
                    ],
                    "lent_to": [{"placement": "r", "model": "secret", "node": "o"}],
                }
            ],
        }
    },
    "models": {"secret": {"name": "secret"}, "mine": {"name": "mine", "load": {"waits_for": "the load of secret"}}},
    "requests": {
        "1": {"id": "r1", "key": "k1", "model": "mine", "tokens": 3},
        "2": {"id": "r2", "key": "k2", "model": "mine", "tokens": 4},
        "3": {"id": "r3", "key": "k2", "model": "secret", "tokens": 5},
        "4": {"id": "r4", "key": "k2", "model": None, "tokens": 0},
    },
    "samples": {},
}


def hidden(text: str) -> str:
    return text.replace("secret", "another model")


def test_a_caller_sees_bytes_but_no_names_of_models_that_are_not_for_it() -> None:
    seen = view_for(VIEW, may_use=lambda model: model == "mine", shown=hidden, own_key_id="k1", sees_all_keys=False)
    assert "secret" not in str(seen)
    assert list(seen["models"]) == ["mine"]
    devices: Any = seen["nodes"]["n"]["devices"]
    assert [held["weights_bytes"] for held in devices[0]["holds"]] == [5, 6]
    assert seen["nodes"]["n"]["crash_rows"] == [{"model": "mine", "crashes": 4}]
    assert devices[0]["lent_to"] == [{"placement": None, "model": None, "node": "o"}]
    assert seen["models"]["mine"]["load"] == {"waits_for": "the load of another model"}


def test_requests_of_others_have_counts_but_no_names() -> None:
    seen = view_for(VIEW, may_use=bool, shown=str, own_key_id="k1", sees_all_keys=False)
    assert seen["requests"]["1"]["id"] == "r1"
    other = seen["requests"]["2"]
    assert (other["id"], other["key"], other["tokens"]) == (None, None, 4)
    assert "4" not in seen["requests"]  # what somebody wrote as a model is theirs


def test_operators_see_every_request() -> None:
    seen = view_for(VIEW, may_use=bool, shown=str, own_key_id="k9", sees_all_keys=True)
    assert {request["key"] for request in seen["requests"].values()} == {"k1", "k2"}

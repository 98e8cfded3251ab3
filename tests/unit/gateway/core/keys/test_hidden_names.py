"""Texts that name models, as somebody reads them who may not know of all."""

import pytest

from gateway.core.keys.hidden_names import texts_shown, without_hidden

MODELS = {"mine:latest", "secret:latest", "secret:q4", "team/plan:7b", "hf.co/a/b:Q4_K_M", "memory:latest"}


def shown(text: str) -> str:
    return without_hidden(text, is_model=MODELS.__contains__, may_use=lambda name: name == "mine:latest")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("a measurement", "a measurement"),
        ("memory that mine:latest holds", "memory that mine:latest holds"),
        ("memory that secret:latest holds", "memory that another model holds"),
        ("memory that mine:latest, secret:q4 hold", "memory that mine:latest, another model hold"),
        ("memory that secret:latest, secret:q4, team/plan:7b hold", "memory that other models hold"),
        ("the load of hf.co/a/b:Q4_K_M", "the load of another model"),
        ("timed out waiting for secret:q4 to be gone.", "timed out waiting for another model to be gone."),
        (
            "evicting secret:latest (4.0 GiB) is not enough; mine:latest is busy",
            "evicting another model (4.0 GiB) is not enough; mine:latest is busy",
        ),
        ("RPC:127.0.0.1:5000/0 on node-a", "RPC:127.0.0.1:5000/0 on node-a"),
        ("not secret:q4_0 and not my/secret:q4", "not secret:q4_0 and not my/secret:q4"),
    ],
)
def test_only_whole_names_of_hidden_models_are_replaced(text: str, told: str) -> None:
    assert shown(text) == told


def test_every_text_of_json_is_shown_so_and_its_names_stay() -> None:
    value = {"secret:q4": [{"model": "secret:q4", "loss": 1.5}, "mine:latest", None], "age_s": 3}
    told = {"secret:q4": [{"model": "another model", "loss": 1.5}, "mine:latest", None], "age_s": 3}
    assert texts_shown(value, shown) == told

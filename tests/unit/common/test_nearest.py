"""A name that there is not is refused with the one that was meant, wherever names are written."""

import json
from collections.abc import Callable

import pytest

from cli.core.constraint_words import constraints_of_words
from cli.core.conversation import RunOptions
from cli.core.dialogue import changed
from cli.core.parameter_values import option_values
from common.errors import InvalidRequest
from common.nearest import did_you_mean
from gateway.core.keys.key_file import VERSION, read_keys
from scheduler.core.values.constraint_fields import parse_constraints


def test_only_what_is_near_is_offered() -> None:
    assert did_you_mean("pined", {"pinned", "nodes"}) == "; did you mean pinned?"
    assert did_you_mean("colour", {"pinned"}, else_say="there are pinned") == "; there are pinned"
    assert did_you_mean("colour", {"pinned"}) == ""


@pytest.mark.parametrize(
    ("read", "meant"),
    [
        (lambda: constraints_of_words(["replica_min=1"]), "replicas_min"),
        (lambda: constraints_of_words(["pined"]), "pinned"),
        (lambda: parse_constraints({"replica_min": 1}), "replicas_min"),
        (lambda: option_values([("temprature", "1")]), "temperature"),
        (lambda: changed(RunOptions(), "temprature", "1"), "temperature"),
        (lambda: read_keys(json.dumps({"version": VERSION, "keys": [{"ownr": "ada"}]})), "owner"),
    ],
)
def test_every_place_says_what_was_meant(read: Callable[[], object], meant: str) -> None:
    with pytest.raises((ValueError, InvalidRequest), match=rf"; did you mean {meant}\?"):
        read()

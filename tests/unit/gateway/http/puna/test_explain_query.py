"""GET /puna/v1/explain refuses what it does not understand, by name."""

import pytest

from common.errors import InvalidRequest
from gateway.http.puna.placements import explain_question


def test_a_query_is_read_as_a_body_is() -> None:
    asked = explain_question(
        {"model": "demo", "num_ctx": "4096", "main_gpu": "0", "require_gpu": "True", "slots": "3", "last": "no"}
    )
    assert (asked.model, asked.last, asked.slots) == ("demo", False, 3)
    assert asked.options == {"num_ctx": 4096, "main_gpu": 0, "require_gpu": True}
    assert explain_question({"model": "demo", "last": "1"}).last
    assert explain_question({"model": "demo", "require_gpu": "0"}).options == {"require_gpu": False}


@pytest.mark.parametrize("text", ["many", "--5", "", "9" * 5000, "٣"])
def test_what_is_no_number_is_left_to_the_check_of_options(text: str) -> None:
    assert explain_question({"model": "demo", "num_ctx": text}).options["num_ctx"] == text


@pytest.mark.parametrize(
    ("query", "text", "param"),
    [
        ({"num_ctxt": "5"}, '"num_ctxt" is no parameter; did you mean num_ctx?', "num_ctxt"),
        ({"colour": "red"}, '"colour" is no parameter', "colour"),
        ({"require_gpu": "maybe"}, "require_gpu must be true or false", "require_gpu"),
        ({"require_gpu": ""}, "require_gpu must be true or false", "require_gpu"),
        ({"last": "2"}, "last must be true or false", "last"),
        ({"slots": "0"}, "slots must be a whole number from 1 to 256", "slots"),
        ({"slots": "-1"}, "slots must be a whole number from 1 to 256", "slots"),
        ({"slots": "257"}, "slots must be a whole number from 1 to 256", "slots"),
        ({"slots": "many"}, "slots must be a whole number from 1 to 256", "slots"),
        ({"model": ""}, "model is required", "model"),
    ],
)
def test_what_makes_no_sense_is_named(query: dict[str, str], text: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        explain_question({"model": "demo", **query})
    assert (caught.value.message, caught.value.param) == (text, param)

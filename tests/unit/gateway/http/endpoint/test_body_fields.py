"""Strict types of body fields, and their texts."""

from typing import Any, cast

import pytest

from common.errors import InvalidRequest
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Service
from gateway.http.ollama.bodies import ChatBody, GenerateBody
from gateway.http.openai.bodies import ChatCompletionBody
from gateway.http.puna.bodies import ConstraintsBody, ExplainBody
from gateway.http.routes import make_routes

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("fields", "text", "param"),
    [
        ({"model": None}, "model is required", "model"),
        ({"model": 5}, "model must be of type string", "model"),
        ({"messages": "hi"}, "messages must be of type array", "messages"),
        ({"messages": [5]}, "messages[0] must be of type object", "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role is required", "messages[0].role"),
        ({"stream": "yes"}, "stream must be of type boolean", "stream"),
        ({"stream": 1}, "stream must be of type boolean", "stream"),
        ({"temperature": True}, "temperature must be of type number", "temperature"),
        ({"temperature": "0.5"}, "temperature must be of type number", "temperature"),
        ({"temperature": 2.1}, "temperature must be between 0 and 2", "temperature"),
        ({"max_tokens": 0}, "max_tokens must be between 1 and 2147483647, or -1 for no limit", "max_tokens"),
        (
            {"max_completion_tokens": -2},
            "max_completion_tokens must be between 1 and 2147483647, or -1 for no limit",
            "max_completion_tokens",
        ),
        ({"top_logprobs": "5"}, "top_logprobs must be of type integer", "top_logprobs"),
        ({"max_tokens": "5"}, "max_tokens must be of type integer", "max_tokens"),
        ({"max_tokens": True}, "max_tokens must be of type integer", "max_tokens"),
        ({"n": 1e9}, "n must be between 1 and 8", "n"),
    ],
)
def test_faults_name_field_and_type(fields: dict[str, object], text: str, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validated(ChatCompletionBody, {"model": "demo", "messages": MESSAGES} | fields)
    assert (caught.value.message, caught.value.param) == (text, param)


def test_a_whole_float_is_an_integer() -> None:
    body = validated(ChatCompletionBody, {"model": "demo", "messages": MESSAGES, "max_tokens": 5.0})
    assert body.max_tokens == 5


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    body = validated(ChatBody, {"model": "demo", "stream": None, "messages": None, "keep_warm": 1, "think": None})
    assert (body.stream, body.messages, body.think) == (True, [], None)


def test_every_body_of_punas_own_routes_refuses_what_it_does_not_know() -> None:
    nothing = cast("Any", None)
    routes = make_routes(Service(inference=nothing, scheduler=nothing, stores=nothing, version="0"))
    bodies: list[Any] = [route.body for route in routes if route.body is not None and route.path.startswith("/puna/")]
    assert ExplainBody in bodies
    for body in bodies:
        with pytest.raises(InvalidRequest) as caught:
            validated(body, {"unheard_of": 1})
        assert caught.value.param == "unheard_of", body


@pytest.mark.parametrize("data", [[], "x", None, 5])
def test_a_body_is_an_object(data: object) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        validated(GenerateBody, data)


@pytest.mark.parametrize("share", [-1, -0.5, 1e39, 1_000_001, "1", True])
def test_a_share_is_a_number_that_the_wire_can_carry(share: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validated(ConstraintsBody, {"devices": ["a", "b"], "tensor_split": [1, share]})
    assert caught.value.param == "tensor_split[1]"


def test_sizes_are_bytes_or_words() -> None:
    body = validated(ConstraintsBody, {"max_bytes": {"*": 5.0, "gpu": "8GiB", "gpu-1": "500 MB"}})
    assert body.max_bytes == {"*": 5, "gpu": 8 << 30, "gpu-1": 500_000_000}


@pytest.mark.parametrize("size", ["8XB", -1, 1.5, True, [], "9" * 400])
def test_what_is_no_size_is_told_the_right_form(size: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        validated(ConstraintsBody, {"max_bytes": {"gpu": size}})
    assert caught.value.message == 'max_bytes.gpu must be a number of bytes or a size such as "8GiB"'
    assert caught.value.param == "max_bytes.gpu"

"""The error table in each dialect's words."""

import orjson
import pytest

from common.errors import ERROR_TABLE, InternalError, InvalidRequest, QueueFull, Retry, RunnerLost, error_types
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.errors import error_answer


@pytest.mark.parametrize("reason", sorted(ERROR_TABLE))
def test_every_error_has_its_status_and_shape_in_both_dialects(reason: str) -> None:
    row = ERROR_TABLE[reason]
    error = error_types()[reason]("what happened", param="field")
    other = error_answer(error, Dialect.OPENAI, "req_1")
    assert other.status == row.openai_status
    body = orjson.loads(other.body)["error"]
    assert (body["type"], body["code"], body["param"]) == (row.openai_type, row.openai_code, "field")
    native = error_answer(error, Dialect.OLLAMA, "req_1")
    assert native.status == row.ollama_status
    assert set(orjson.loads(native.body)) == {"error"}


@pytest.mark.parametrize("reason", sorted(ERROR_TABLE))
def test_no_deterministic_failure_leaves_as_a_status_that_clients_retry(reason: str) -> None:
    row = ERROR_TABLE[reason]
    answer = error_answer(error_types()[reason]("x"), Dialect.OPENAI, "req_1")
    if row.retry is Retry.NEVER:
        assert answer.headers["x-should-retry"] == "false"
    if row.retry is Retry.LATER:
        assert int(answer.headers["retry-after"]) >= 1


def test_retry_after_is_rounded_up() -> None:
    answer = error_answer(QueueFull("busy", retry_after_s=2.01), Dialect.OLLAMA, "req_1")
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2010")


def test_a_bug_tells_strangers_only_where_to_look() -> None:
    error = InternalError("KeyError: secret at line 5")
    assert orjson.loads(error_answer(error, Dialect.OLLAMA, "req_1").body) == {"error": "internal error"}
    message = orjson.loads(error_answer(error, Dialect.OPENAI, "req_1").body)["error"]["message"]
    assert message == "internal error (req_1)"


def test_compatibility_texts_pass_unchanged() -> None:
    body = error_answer(RunnerLost("model runner has unexpectedly stopped"), Dialect.OLLAMA, "r").body
    assert orjson.loads(body) == {"error": "model runner has unexpectedly stopped"}
    assert error_answer(InvalidRequest("x"), Dialect.OPENAI, "r").headers == {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("context_length_exceeded", "the input length exceeds the context length"),
        ("queue_full", "server busy, please try again.  maximum pending requests exceeded"),
        ("runner_lost", "model runner has unexpectedly stopped"),
        ("request_timeout", "request timed out"),
        ("permission_denied", "forbidden"),
        ("invalid_api_key", "unauthorized"),
        ("request_canceled", "request canceled"),
    ],
)
def test_ollamas_clients_get_the_texts_that_they_compare(reason: str, text: str) -> None:
    error = error_types()[reason]("5 tokens > 4")
    longer = error_types()[reason](f"{text}: 5 tokens > 4")
    for one in (error, longer) if reason != "permission_denied" else (error,):
        assert orjson.loads(error_answer(one, Dialect.OLLAMA, "r").body) == {"error": text}

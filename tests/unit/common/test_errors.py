"""The error table is complete and says what the API pages promise."""

import errno
import threading

import pytest
from grpc import StatusCode

from common.errors import ERROR_TABLE, ModelUnavailable, Retry, error_types, exhaustion


def test_every_error_has_a_row_and_every_row_an_error() -> None:
    assert set(error_types()) == set(ERROR_TABLE)


@pytest.mark.parametrize(
    ("reason", "openai_status", "anthropic_type", "ollama_status", "grpc"),
    [
        ("invalid_value", 400, "invalid_request_error", 400, StatusCode.INVALID_ARGUMENT),
        ("context_length_exceeded", 400, "invalid_request_error", 400, StatusCode.INVALID_ARGUMENT),
        ("unsupported_capability", 400, "invalid_request_error", 400, StatusCode.INVALID_ARGUMENT),
        ("template_error", 400, "invalid_request_error", 400, StatusCode.INVALID_ARGUMENT),
        ("invalid_api_key", 401, "authentication_error", 401, StatusCode.UNAUTHENTICATED),
        ("permission_denied", 403, "permission_error", 403, StatusCode.PERMISSION_DENIED),
        ("model_not_found", 404, "not_found_error", 404, StatusCode.NOT_FOUND),
        ("request_too_large", 413, "request_too_large", 413, StatusCode.RESOURCE_EXHAUSTED),
        ("rate_limit_exceeded", 429, "rate_limit_error", 429, StatusCode.RESOURCE_EXHAUSTED),
        ("queue_full", 429, "overloaded_error", 503, StatusCode.RESOURCE_EXHAUSTED),
        ("model_unavailable", 503, "overloaded_error", 503, StatusCode.UNAVAILABLE),
        ("insufficient_memory", 503, "api_error", 500, StatusCode.FAILED_PRECONDITION),
        ("runner_lost", 503, "api_error", 500, StatusCode.UNAVAILABLE),
        ("request_quarantined", 500, "api_error", 500, StatusCode.FAILED_PRECONDITION),
        ("request_timeout", 504, "timeout_error", 504, StatusCode.DEADLINE_EXCEEDED),
        ("not_supported", 501, "api_error", 501, StatusCode.UNIMPLEMENTED),
        ("internal_error", 500, "api_error", 500, StatusCode.INTERNAL),
    ],
)
def test_a_row_gives_the_status_of_every_dialect(
    reason: str, openai_status: int, anthropic_type: str, ollama_status: int, grpc: StatusCode
) -> None:
    row = ERROR_TABLE[reason]
    assert (row.openai_status, row.anthropic_type, row.ollama_status, row.grpc) == (
        openai_status,
        anthropic_type,
        ollama_status,
        grpc,
    )


def test_nothing_deterministic_leaves_as_5xx_that_sdks_would_retry() -> None:
    for reason in ("insufficient_memory", "request_quarantined", "not_supported", "bad_model_file", "template_error"):
        assert ERROR_TABLE[reason].retry is Retry.NEVER


def test_a_lack_of_descriptors_or_threads_is_a_refusal_and_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise threading.ThreadError("can't start new thread")  # a RuntimeError, as the interpreter raises it

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    with pytest.raises(RuntimeError) as caught:
        threading.Thread(target=print).start()
    for error in (OSError(errno.EMFILE, "x"), OSError(errno.ENFILE, "x"), caught.value):
        refusal = exhaustion(error)
        assert isinstance(refusal, ModelUnavailable)
        assert refusal.retry_after_s is not None
    for other in (OSError(errno.ENOSPC, "x"), RuntimeError("x"), ModelUnavailable("x")):
        assert exhaustion(other) is None

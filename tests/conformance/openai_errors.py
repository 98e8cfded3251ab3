"""Cases of the OpenAI client: every error that can be provoked is the client's own exception."""

import contextlib
from functools import partial
from typing import Any

from tests.conformance.strict import COLD, LONG, POISON, crowd, drained
from tests.conformance.table import QUESTION, WHOLE, Talk, case, raised, read

ERRORS = "OpenAI: errors"
ONE = (WHOLE,)
NO_STREAM = "not an answer"
ASKED = [{"role": "user", "content": QUESTION}]


def _ask(talk: Talk, **body: Any) -> Any:
    return lambda: talk.api.chat.completions.create(
        **({"model": "demo", "messages": ASKED, "max_tokens": 4} | body), stream=talk.stream
    )


async def _error(talk: Talk, kind: str, code: str, **body: Any) -> Any:
    error = await raised(_ask(talk, **body), getattr(talk.package, kind))
    assert error.code == code, (error.code, error.message)
    assert error.message
    return error


@case("openai", "an invalid value", ERRORS)
async def invalid(talk: Talk) -> None:
    """Out of range, of the wrong type, missing: each names its field."""
    for field, wrong in (
        ("temperature", 3),
        ("n", 9),
        ("top_logprobs", 21),
        ("seed", "x"),
        ("stop", [1]),
        ("tools", [{}]),
    ):
        more = {"logprobs": True} if field == "top_logprobs" else {}
        error = await _error(talk, "BadRequestError", "invalid_value", **more, extra_body={field: wrong})
        assert error.type == "invalid_request_error"
        assert field in (error.param or "")
    await _error(talk, "BadRequestError", "invalid_value", messages=[])
    for field in ("functions", "function_call", "audio"):
        await _error(talk, "BadRequestError", "invalid_value", extra_body={field: [{"name": "x"}]})


@case("openai", "a prompt that is too long", ERRORS)
async def too_long(talk: Talk) -> None:
    """context_length_exceeded, in the sentence that clients fall back on."""
    long = [{"role": "user", "content": "word " * 3000}]
    error = await _error(talk, "BadRequestError", "context_length_exceeded", messages=long)
    assert "This model's maximum context length is " in error.message
    assert "However, your messages resulted in " in error.message
    assert error.param == "messages"


@case("openai", "a capability that the model lacks", ERRORS)
async def capability(talk: Talk) -> None:
    """An image for a model that sees none, a suffix, vectors of a model that makes text."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + talk.facts["images"][0]}}
    seen = [{"role": "user", "content": [image]}]
    await _error(talk, "BadRequestError", "unsupported_capability", messages=seen)
    error = await raised(
        lambda: talk.api.completions.create(model="plain", prompt="x", suffix="y", stream=talk.stream),
        talk.package.BadRequestError,
    )
    assert (error.code, error.param) == ("unsupported_capability", "suffix")
    if not talk.stream:
        await raised(lambda: talk.api.embeddings.create(model="demo", input="x"), talk.package.BadRequestError)


@case("openai", "a template that refuses", ERRORS)
async def template(talk: Talk) -> None:
    """A template that refuses."""
    await _error(talk, "BadRequestError", "template_error", model="refusing")


@case("openai", "a foreign Host", ERRORS, not_npm="Node's fetch writes Host itself")
async def host(talk: Talk) -> None:
    """The Host header of another machine."""
    await _error(talk, "PermissionDeniedError", "permission_denied", extra_headers={"Host": "evil.example"})


@case("openai", "an unknown model", ERRORS)
async def unknown_model(talk: Talk) -> None:
    """model_not_found."""
    await _error(talk, "NotFoundError", "model_not_found", model="nobody")


@case("openai", "an unknown route, method or media type", ERRORS, modes=ONE, why_not=NO_STREAM)
async def routes(talk: Talk) -> None:
    """404, 405, 415."""
    kinds = talk.package
    assert (await raised(lambda: talk.api.get("/nowhere", cast_to=object), kinds.NotFoundError)).code == "unknown_url"
    error = await raised(lambda: talk.api.get("/chat/completions", cast_to=object), kinds.APIStatusError)
    assert (error.status_code, error.code) == (405, "method_not_allowed")
    error = await raised(_ask(talk, extra_headers={"Content-Type": "text/plain"}), kinds.APIStatusError)
    assert (error.status_code, error.code) == (415, "unsupported_media_type")


@case("openai", "a body that is too large", ERRORS, modes=ONE, why_not=NO_STREAM)
async def too_large(talk: Talk) -> None:
    """A body of 11 MiB."""
    error = await raised(
        _ask(talk, messages=[{"role": "user", "content": "x" * (11 * 2**20)}]), talk.package.APIStatusError
    )
    assert (error.status_code, error.code) == (413, "request_too_large")


@case("openai", "a model that does not fit", ERRORS, stage="tight")
async def no_room(talk: Talk) -> None:
    """Nothing fits: told not to try again."""
    error = await raised(_ask(talk), talk.package.InternalServerError)
    assert (error.status_code, error.code) == (503, "insufficient_memory")
    assert error.response.headers["x-should-retry"] == "false"


@case("openai", "what is not implemented", ERRORS, modes=ONE, why_not=NO_STREAM)
async def not_implemented(talk: Talk) -> None:
    """Keys where there is no file of them, and families of the API that are not here."""
    error = await raised(
        lambda: talk.api.get(talk.url + "/puna/v1/keys", cast_to=object), talk.package.InternalServerError
    )
    assert (error.status_code, error.code) == (501, "not_supported")
    for path in ("/files", "/batches/one", "/conversations/one/items"):
        error = await raised(partial(talk.api.get, path, cast_to=object), talk.package.InternalServerError)
        assert (error.status_code, error.code) == (501, "not_supported")
        assert error.response.headers["x-should-retry"] == "false"


@case("openai", "no key", ERRORS, stage="strict")
async def no_key(talk: Talk) -> None:
    """A key that is not good."""
    wrong = {"Authorization": "Bearer nonsense"}
    await _error(talk, "AuthenticationError", "invalid_api_key", extra_headers=wrong)


@case("openai", "a scope that the key lacks", ERRORS, modes=ONE, why_not=NO_STREAM, stage="strict")
async def scope(talk: Talk) -> None:
    """A key that may infer may not see other keys."""
    call = lambda: talk.api.get(talk.url + "/puna/v1/keys", cast_to=object)  # noqa: E731
    assert (await raised(call, talk.package.PermissionDeniedError)).code == "permission_denied"


@case("openai", "a quota that is used up", ERRORS, stage="strict")
async def quota(talk: Talk) -> None:
    """A key with one request a minute has had it."""
    limited = {"Authorization": "Bearer " + talk.facts["limited_key"]}
    with contextlib.suppress(talk.package.RateLimitError):
        await read(_ask(talk, max_tokens=1, extra_headers=limited))
    error = await _error(talk, "RateLimitError", "rate_limit_exceeded", extra_headers=limited)
    assert int(error.response.headers["retry-after"]) >= 1
    assert "x-ratelimit-limit-requests" in error.response.headers


@case("openai", "every place taken", ERRORS, stage="strict")
async def busy(talk: Talk) -> None:
    """Every place is taken: come again later."""
    with crowd(talk):
        error = await _error(talk, "RateLimitError", "queue_full")
    assert int(error.response.headers["retry-after"]) >= 1


@case("openai", "a request that stops runners", ERRORS, stage="strict")
async def poison(talk: Talk) -> None:
    """A request that kills its runners is not sent to a third."""
    error = await raised(_ask(talk, model="victim-openai", seed=POISON), talk.package.InternalServerError)
    assert (error.status_code, error.code) == (500, "request_quarantined")
    assert error.response.headers["x-should-retry"] == "false"


@case("openai", "no replica to be had", ERRORS, stage="strict")
async def no_replica(talk: Talk) -> None:
    """Nothing can answer now: come again later."""
    with drained(talk):
        error = await raised(_ask(talk, model=COLD), talk.package.InternalServerError)
    assert (error.status_code, error.code) == (503, "model_unavailable")
    assert int(error.response.headers["retry-after"]) >= 1


@case("openai", "a deadline, and an error in a stream", ERRORS, stage="hurried")
async def deadline(talk: Talk) -> None:
    """504, or an error object in the middle of a stream."""
    error = await raised(_ask(talk, max_tokens=LONG), talk.package.APIError)
    assert error.code == "request_timeout", error
    assert error.status_code == 504 if not talk.stream else not hasattr(error, "status_code")

"""Cases that schemathesis makes of the OpenAPI document: counted, and each answer held to the document."""

import contextlib
import time
from typing import Any, cast

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from tests.fuzz.answers import Answer, Answers
from tests.fuzz.server_errors import is_documented
from tests.openapi_answers import fault_of

# Streams of news, which end when their reader leaves.
ENDLESS = frozenset({"/puna/v1/events"})


def fuzz_openapi(url: str, report: Answers, *, cases_per_route: int, fixed_seed: int) -> None:
    """Send about so many cases to each route that takes a body, good ones and bad ones, and a few to the others."""
    with httpx.Client(base_url=url, timeout=60) as client:
        document = client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=url)
        for result in schema.get_all_operations():
            operation: Any = cast("Any", result).ok()
            cases = cases_per_route if operation.body else 10
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _fuzz_route(operation, mode, client, document, report, cases // 2, fixed_seed)


def _fuzz_route(
    operation: Any,
    mode: GenerationMode,
    client: httpx.Client,
    document: dict[str, Any],
    report: Answers,
    cases: int,
    fixed_seed: int,
) -> None:
    @seed(fixed_seed)
    @settings(
        max_examples=max(cases, 1),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: Any) -> None:
        try:
            case = data.draw(operation.as_strategy(generation_mode=mode))
        except schemathesis.errors.SchemathesisError:
            return
        report.take(lambda: _send(case, client, document))

    with contextlib.suppress(Unsatisfiable):  # nothing about this route can be wrong
        run()


def _send(case: Any, client: httpx.Client, document: dict[str, Any]) -> Answer | None:
    arguments = case.as_transport_kwargs(base_url=str(client.base_url))
    content = arguments.pop("data", None)
    request: dict[str, Any] = {
        "method": arguments["method"],
        "url": arguments["url"],
        "params": arguments.get("params"),
        "headers": {name: value for name, value in (arguments.get("headers") or {}).items() if value is not None},
        "cookies": None,
    }
    if "json" in arguments:
        request["json"] = arguments["json"]
    elif content is not None:
        request["content"] = content if isinstance(content, bytes | str) else str(content)
    try:
        begun_s = time.monotonic()
        with client.stream(**request) as answer:
            if case.operation.path not in ENDLESS:
                answer.read()
            took_s = time.monotonic() - begun_s
    except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeEncodeError, ValueError):
        return None  # no client can send that
    body = request.get("json", request.get("content"))
    fault = _fault(case, answer, document)
    return Answer(
        status=str(answer.status_code),
        is_refused=answer.is_error,
        took_s=took_s,
        request=f"{request['method']} {request['url']}, body {str(body)[:300]}",
        fault=f"{answer.status_code}: {fault}" if fault else "",
    )


def _fault(case: Any, answer: httpx.Response, document: dict[str, Any]) -> str:
    """Describe the fault of an answer; empty: none."""
    path, method, status = case.operation.path, case.method.upper(), answer.status_code
    head = "\n".join(f"{name}: {value}" for name, value in answer.headers.items())
    # HEAD has no text, and no route that takes it may be missing.
    if status >= 500 and not is_documented(status, head, answer.text, path):
        return answer.text[:300] or "a server error"
    if path in ENDLESS:
        return ""
    return fault_of(document, method, path, status, answer.headers.get("content-type", ""), answer.content)

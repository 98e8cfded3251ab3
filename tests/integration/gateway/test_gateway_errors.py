"""Every error in its caller's dialect, as the official clients' typed exceptions."""

import asyncio
from typing import Any

import httpx
import ollama
import openai
import pytest

from common.errors import InsufficientMemory, ModelUnavailable, RunnerLost
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]
CHAT = "/v1/chat/completions"


async def openai_error(cluster: Cluster, **fields: Any) -> openai.APIStatusError:
    """The exception of a request that fails."""
    with pytest.raises(openai.APIStatusError) as caught:
        await cluster.openai.chat.completions.create(**({"model": "demo", "messages": QUESTION} | fields))
    return caught.value


async def ollama_error(cluster: Cluster, **fields: Any) -> ollama.ResponseError:
    """The exception of a request that fails."""
    with pytest.raises(ollama.ResponseError) as caught:
        await cluster.ollama.chat(**({"model": "demo", "messages": QUESTION} | fields))
    return caught.value


async def test_an_unknown_model_is_not_found_in_each_dialect(cluster: Cluster) -> None:
    other = await openai_error(cluster, model="nope")
    assert isinstance(other, openai.NotFoundError)
    assert (other.code, other.type, other.param) == ("model_not_found", "invalid_request_error", "model")
    assert other.body["message"] == "model 'nope' not found"  # type: ignore[index]
    native = await ollama_error(cluster, model="nope")
    assert (native.status_code, native.error) == (404, "model 'nope' not found")


@pytest.mark.parametrize("model", ["../x", "a/b/c/d", "C:\\x"])
async def test_a_name_that_is_none_is_not_found(cluster: Cluster, model: str) -> None:
    assert (await ollama_error(cluster, model=model)).status_code == 404


async def test_a_control_character_in_a_name_is_a_bad_request(cluster: Cluster) -> None:
    refused = await ollama_error(cluster, model="x\u0000y")
    assert (refused.status_code, refused.error) == (400, "model must not have control characters")


@pytest.mark.behaviour("B-111")
async def test_more_than_twenty_alternatives_are_refused_in_each_dialect(cluster: Cluster) -> None:
    other = await openai_error(cluster, logprobs=True, top_logprobs=21)
    assert isinstance(other, openai.BadRequestError)
    assert (other.param, other.body["message"]) == (  # type: ignore[index]
        "top_logprobs",
        "top_logprobs must be between 0 and 20",
    )
    native = await ollama_error(cluster, logprobs=True, top_logprobs=21)
    assert (native.status_code, native.error) == (400, "top_logprobs must be between 0 and 20")
    with pytest.raises(openai.BadRequestError):
        await cluster.openai.completions.create(model="demo", prompt="x", logprobs=21)


async def test_a_wrong_option_type_names_the_option(cluster: Cluster) -> None:
    native = await ollama_error(cluster, options={"num_ctx": "5"})
    assert (native.status_code, native.error) == (400, 'option "num_ctx" must be of type integer')


@pytest.mark.parametrize(
    ("path", "raw", "text"),
    [
        ("/api/chat", b"", "missing request body"),
        ("/api/chat", b"{", "invalid JSON"),
        ("/api/chat", b"[]", "must be a JSON object"),
        ("/api/chat", b"{}", "model is required"),
        ("/api/chat", b'{"model": ""}', "model is required"),
        ("/api/chat", b'{"model": "demo", "think": "x", "messages": [{"role": "user"}]}', "invalid think value"),
        ("/api/chat", b'{"model": "demo", "messages": [{"role": "robot", "content": "x"}]}', "invalid message role"),
        ("/api/chat", b'{"model": "demo", "keep_alive": "soon"}', "keep_alive"),
        ("/api/chat", b'{"model": "demo", "format": "xml", "messages": [{"role": "user"}]}', "format must be"),
        ("/api/generate", b'{"model": "demo", "raw": true, "system": "x", "prompt": "y"}', "raw mode does not support"),
        ("/api/generate", b'{"model": "demo", "suffix": "x", "prompt": "y"}', '"demo" does not support insert'),
        ("/api/generate", b'{"model": "demo", "images": ["aGk="], "prompt": "y"}', "does not support vision"),
        ("/api/show", b"{}", "model is required"),
        (CHAT, b'{"model": "demo"}', "messages is required"),
        (CHAT, b'{"model": "demo", "messages": []}', "[] is too short - 'messages'"),
        (CHAT, b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "n": 9}', "between 1 and 8"),
        (CHAT, b'{"model": "demo", "messages": [{"role": "user", "content": 5}]}', "content must be"),
        (CHAT, b'{"model": "demo", "messages": [{"role": "user"}]}', "must have content"),
        (
            CHAT,
            b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream_options": {}}',
            "needs stream",
        ),
        (
            CHAT,
            b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 1}',
            "needs logprobs",
        ),
        (CHAT, b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "functions": []}', "not supported"),
        (CHAT, b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "seed": 1e40}', "between"),
        (
            CHAT,
            b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}',
            "response_format must be",
        ),
        (
            "/v1/completions",
            b'{"model": "demo", "prompt": "x", "grammar": "root ::= x", "response_format": {"type": "json_object"}}',
            "exclude each other",
        ),
        ("/v1/completions", b'{"model": "demo", "prompt": {}}', "prompt must be"),
        ("/v1/completions", b'{"model": "demo", "prompt": []}', "prompt must be"),
        ("/v1/completions", b'{"model": "demo", "prompt": "x", "best_of": 2}', "best_of"),
    ],
)
async def test_bad_bodies_are_400_with_a_text(cluster: Cluster, path: str, raw: bytes, text: str) -> None:
    answer = await cluster.http.post(path, content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    message = error if path.startswith("/api/") else error["message"]
    assert text in message
    if not path.startswith("/api/"):
        assert (error["type"], set(error)) == ("invalid_request_error", {"message", "type", "param", "code"})


async def test_what_a_model_cannot_do_is_refused_by_name(cluster: Cluster) -> None:
    assert (await ollama_error(cluster, think=True)).error == '"demo" does not support thinking'
    cluster.scheduler.models[MODEL_NAME] = scripted_model(capabilities=["embedding"])
    await cluster.scheduler.publish()
    inference = cluster.gateway.service.inference
    await eventually(lambda: "embedding" in inference.models.known_route("demo").model.capabilities)
    assert (await ollama_error(cluster)).error == '"demo" does not support chat'
    other = await openai_error(cluster, tools=[{"type": "function", "function": {"name": "f"}}])
    assert other.code == "unsupported_capability"


async def test_a_template_that_refuses_is_not_retried(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(
        models={MODEL_NAME: scripted_model(chat_template="{{ raise_exception('roles must alternate') }}")}
    )
    async with start_cluster(scheduler=scheduler) as cluster:
        error = await openai_error(cluster)
        assert (error.status_code, error.code) == (400, "template_error")
        assert "roles must alternate" in error.message
        assert error.response.headers["x-should-retry"] == "false"


async def test_a_broken_file_is_known_by_name(start_cluster: StartCluster) -> None:
    broken = scripted_model()
    broken.ClearField("description")
    broken.error = "truncated at 1000 of 2000 bytes"
    async with start_cluster(scheduler=ScriptedScheduler(models={MODEL_NAME: broken}), warm=False) as cluster:
        error = await openai_error(cluster)
        assert (error.status_code, error.code) == (500, "bad_model_file")
        assert "truncated" in error.message
        assert error.response.headers["x-should-retry"] == "false"
        assert cluster.scheduler.ensured == []


async def test_a_prompt_over_the_context_is_400_where_nothing_may_be_cut(cluster: Cluster) -> None:
    long: Any = [{"role": "user", "content": " ".join(["word"] * 600)}]
    assert (await openai_error(cluster, messages=long)).status_code == 400


async def test_errors_of_loading_come_through_typed(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(load_error=InsufficientMemory("model requires more system memory (2) than (1)"))
    async with start_cluster(scheduler=scheduler, warm=False) as cluster:
        error = await openai_error(cluster)
        assert (error.status_code, error.code) == (503, "insufficient_memory")
        assert error.response.headers["x-should-retry"] == "false"
        assert (await ollama_error(cluster)).status_code == 500
        scheduler.load_error = ModelUnavailable("nothing there", retry_after_s=7.0)
        error = await openai_error(cluster)
        assert (error.status_code, error.code) == (503, "model_unavailable")
        assert error.response.headers["retry-after"] == "7"
        assert error.response.headers["retry-after-ms"] == "7000"


async def test_a_full_queue_answers_busy_at_once_in_each_dialect(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    async with start_cluster(runner=ScriptedRunner(slots=1, before=hold), max_queue=1) as cluster:
        running = [asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION)) for _ in range(2)]
        dispatcher = cluster.gateway.service.inference.dispatcher
        await eventually(lambda: cluster.runner.busy == 1 and sum(dispatcher.depths().values()) == 1)
        other = await openai_error(cluster)
        assert isinstance(other, openai.RateLimitError)
        assert other.code == "queue_full"
        assert int(other.response.headers["retry-after"]) >= 1
        native = await ollama_error(cluster)
        assert (native.status_code, native.error) == (
            503,
            "server busy, please try again.  maximum pending requests exceeded",
        )
        gate.set()
        assert all(answer.done for answer in await asyncio.gather(*running))


async def test_waiting_too_long_is_busy_too(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    async with start_cluster(runner=ScriptedRunner(slots=1, before=hold), queue_wait_s=1.0) as cluster:
        running = asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION))
        await asyncio.wait_for(cluster.runner.started.wait(), 60)
        late = await asyncio.gather(*(openai_error(cluster) for _ in range(3)))
        assert {error.code for error in late} == {"queue_full"}
        gate.set()
        assert (await running).done
        assert (await cluster.ollama.chat(model="demo", messages=QUESTION)).done
        assert len(cluster.runner.requests) == 2, "stale requests reached the runner"


async def test_refused_clients_are_asked_to_come_back_at_different_times(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    async with start_cluster(runner=ScriptedRunner(slots=1, before=hold)) as cluster:
        dispatcher = cluster.gateway.service.inference.dispatcher
        asked = [asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION)) for _ in range(17)]
        await eventually(lambda: sum(dispatcher.depths().values()) == 16)
        refused = [await openai_error(cluster) for _ in range(20)]
        retries_s = {int(error.response.headers["retry-after"]) for error in refused}
        # Seventeen are ahead, each is expected to take a second: a fifth of that is the jitter.
        assert retries_s <= set(range(14, 22))
        assert len(retries_s) > 1
        gate.set()
        assert all(answer.done for answer in await asyncio.gather(*asked))


async def test_the_deadline_of_a_request_is_504(start_cluster: StartCluster) -> None:
    async def hang(_: ScriptedRunner) -> None:
        await asyncio.Event().wait()

    async with start_cluster(runner=ScriptedRunner(before=hang), request_timeout_s=0.3) as cluster:
        other = await openai_error(cluster)
        assert (other.status_code, other.code) == (504, "request_timeout")
        native = await ollama_error(cluster)
        assert (native.status_code, native.error) == (504, "request timed out")


async def test_a_stream_that_fails_after_its_first_token_ends_in_one_error_object(start_cluster: StartCluster) -> None:
    async def die(_: ScriptedRunner) -> None:
        raise RunnerLost("gone")

    runner = ScriptedRunner(after_piece={1: die})
    async with start_cluster(runner=runner, resume=False) as cluster:
        body = {"model": "demo", "messages": QUESTION, "stream": True}
        native = (await cluster.http.post("/api/chat", json=body)).text.splitlines()
        assert native[-1] == '{"error":"model runner has unexpectedly stopped"}'
        assert sum('"error"' in line for line in native) == 1
        other = await cluster.http.post(CHAT, json=body)
        assert other.status_code == 200
        events = other.text.strip().split("\n\n")
        assert '"code":"runner_lost"' in events[-1]
        assert "[DONE]" not in other.text
        with pytest.raises(openai.APIError, match="unexpectedly stopped"):
            async for _ in await cluster.openai.chat.completions.create(model="demo", messages=QUESTION, stream=True):
                pass
        with pytest.raises(ollama.ResponseError, match="unexpectedly stopped"):
            async for _ in await cluster.ollama.chat(model="demo", messages=QUESTION, stream=True):
                pass


@pytest.mark.parametrize(
    ("method", "path", "status", "is_native"),
    [
        ("GET", "/api/nothing", 404, True),
        ("GET", "/v1/nothing", 404, False),
        ("GET", "/elsewhere", 404, False),
        ("GET", "/api/chat", 405, True),
        ("DELETE", CHAT, 405, False),
        ("POST", "/", 405, True),
    ],
)
async def test_unknown_routes_and_methods_speak_the_dialect(
    cluster: Cluster, method: str, path: str, status: int, is_native: bool
) -> None:
    answer = await cluster.http.request(method, path)
    assert answer.status_code == status
    assert isinstance(answer.json()["error"], str) is is_native
    if status == 405:
        assert answer.headers["allow"]


async def test_compressed_and_foreign_bodies_are_415(cluster: Cluster) -> None:
    body = b'{"model": "demo", "messages": [{"role": "user", "content": "hi"}], "stream": false}'
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await cluster.http.post("/api/chat", content=body, headers=form)).status_code == 200
    assert (await cluster.http.post(CHAT, content=body, headers=form)).status_code == 415
    for path in ("/api/chat", CHAT):
        compressed = await cluster.http.post(path, content=body, headers={"content-encoding": "gzip"})
        assert compressed.status_code == 415
        multipart = await cluster.http.post(path, content=body, headers={"content-type": "multipart/form-data"})
        assert multipart.status_code == 415


async def test_a_body_over_the_limit_is_413_before_it_is_read(cluster: Cluster) -> None:
    host, port = cluster.gateway.http_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {2**30}\r\n\r\n".encode())
    status_line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    await writer.wait_closed()
    assert b" 413 " in status_line
    large = await cluster.http.post(CHAT, content=b'{"prompt": "' + b"x" * (33 * 2**20) + b'"}')
    assert large.status_code == 413
    assert large.json()["error"]["code"] == "request_too_large"


async def test_every_response_has_a_request_id_and_echoes_the_clients(cluster: Cluster) -> None:
    for path in ("/api/version", "/api/nothing", "/healthz"):
        answer = await cluster.http.get(path, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"].startswith("req_")
        assert len(answer.headers["x-request-id"]) == 30
        assert answer.headers["x-client-request-id"] == "mine-1"


async def test_the_request_id_reaches_the_runner(cluster: Cluster) -> None:
    body = {"model": "demo", "messages": QUESTION, "stream": False}
    answer = await cluster.http.post("/api/chat", json=body)
    assert cluster.runner.request_ids == [answer.headers["x-request-id"]]


def _refusal(answer: httpx.Response) -> str:
    """Return the text of a 403 in any dialect."""
    assert answer.status_code == 403
    error = answer.json()["error"]
    return error if isinstance(error, str) else error["message"]


async def test_rebound_names_and_foreign_pages_are_forbidden(cluster: Cluster) -> None:
    rebound = await cluster.http.get("/api/tags", headers={"host": "evil.example"})
    assert _refusal(rebound).startswith("forbidden: the Host 'evil.example'")
    foreign = await cluster.http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["error"]["type"]) == (403, "permission_error")
    local = await cluster.http.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
    preflight = await cluster.http.options(
        CHAT, headers={"origin": "http://localhost:3000", "access-control-request-headers": "authorization"}
    )
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == "authorization"
    assert "POST" in preflight.headers["access-control-allow-methods"]


async def test_a_published_gateway_without_keys_answers_no_rebound_name(start_cluster: StartCluster) -> None:
    async with start_cluster(host="0.0.0.0:0", open_gateway=True) as cluster:
        for name in ("evil.example", "evil.local", "evil.internal"):
            for path in ("/api/tags", "/v1/models", "/puna/v1/nodes", "/metrics", "/ui"):
                text = _refusal(await cluster.http.get(path, headers={"host": f"{name}:11434"}))
                assert name in text
                assert "PUNA_ORIGINS" in text
            own_page = {"host": name, "origin": f"http://{name}"}
            assert name in _refusal(await cluster.http.post("/api/chat", json={}, headers=own_page))


async def test_a_published_gateway_answers_services_addresses_and_listed_names(start_cluster: StartCluster) -> None:
    origins = "http://puna.example:11434"
    async with start_cluster(host="0.0.0.0:0", open_gateway=True, origins=origins) as cluster:
        for name in ("gateway:11434", "192.0.2.7:11434", "localhost", "puna.example:11434", "host.docker.internal"):
            answer = await cluster.http.get("/api/tags", headers={"host": name})
            assert answer.status_code == 200, name
        body = {"model": "demo", "messages": QUESTION, "stream": False}
        answer = await cluster.http.post("/api/chat", json=body, headers={"host": origins[7:], "origin": origins})
        assert answer.status_code == 200
        # Only what lists the name may act under it: a search domain can point a short one anywhere.
        short = {"host": "gateway:11434", "origin": "http://gateway:11434"}
        assert (await cluster.http.post("/api/chat", json=body, headers=short)).status_code == 403


async def test_a_page_of_another_site_gets_no_data_and_may_link_here(cluster: Cluster) -> None:
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    for path in ("/api/tags", "/v1/models", "/puna/v1/nodes"):
        assert "PUNA_ORIGINS" in _refusal(await cluster.http.get(path, headers=cross))
    framed = cross | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert (await cluster.http.get("/ui", headers=framed)).status_code == 403
    followed = cross | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert (await cluster.http.get("/ui", headers=followed)).status_code == 200
    for site in ("same-origin", "none"):
        assert (await cluster.http.get("/api/tags", headers={"sec-fetch-site": site})).status_code == 200
    allowed = cross | {"sec-fetch-mode": "cors", "origin": "http://127.0.0.1:3000"}
    assert (await cluster.http.get("/api/tags", headers=allowed)).status_code == 200


async def test_a_hopelessly_long_prompt_is_refused_in_each_dialect_before_it_is_rendered(
    start_cluster: StartCluster,
) -> None:
    model = scripted_model(token_bytes_max=16, chat_template="{{ raise_exception('it is rendered') }}")
    async with start_cluster(scheduler=ScriptedScheduler(models={MODEL_NAME: model})) as cluster:
        hopeless: Any = [{"role": "user", "content": "<|im_start|" * 2**16}]
        limit = f"{11 * 2**16 // 16} tokens"
        error = await openai_error(cluster, messages=hopeless)
        assert (error.status_code, error.code) == (400, "context_length_exceeded")
        assert "maximum context length is 512 tokens" in error.message
        assert limit in error.message
        body = {"model": "demo", "messages": hopeless, "max_tokens": 5}
        anthropic = await cluster.http.post("/v1/messages", json=body)
        assert anthropic.status_code == 400
        assert anthropic.json()["error"]["message"] == f"prompt is too long: {limit} > 512 maximum"
        native = await cluster.http.post("/api/chat", json=body | {"truncate": False})
        assert (native.status_code, native.json()) == (400, {"error": "the input length exceeds the context length"})

"""Keys at the gateway: who gets in, what is open to whom, and how much of it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import grpc
import httpx
import ollama
import openai
import pytest
from grpc import aio
from prometheus_client import REGISTRY

from cli.commands.keys import create, revoke
from common.errors import StartupError
from common.rate_limits import FAILURES_PER_MINUTE
from gateway.app import running_gateway
from gateway.settings import GatewaySettings
from protos import inference_pb2, inference_pb2_grpc
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import ScriptedRunner
from tests.waiting import Stopwatch, next_look

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
SCOPES = ("infer", "embed", "models:read")
# A wish of a test for what never comes.
FAR_ADDRESS = "0.0.0.0:0"  # bound for a moment, to see that it is not


@dataclass
class Keys:
    """A file of keys, edited as the command line does."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    def create(self, owner: str = "ada", scopes: tuple[str, ...] = SCOPES, **wish: Any) -> str:
        create({"owner": owner, "tenant": owner, "scopes": list(scopes), **wish}, self.path, as_json=True)
        key: str = json.loads(self.capsys.readouterr().out)["key"]
        return key

    def revoke(self, key: str) -> None:
        revoke(key.split("_")[1], self.path, as_json=True)
        self.capsys.readouterr()


@pytest.fixture
def keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Keys:
    return Keys(tmp_path / "keys.json", capsys)


@pytest.fixture
def start(start_cluster: StartCluster, keys: Keys) -> Callable[..., Any]:
    return lambda **more: start_cluster(api_keys_file=str(keys.path), **more)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@asynccontextmanager
async def openai_client(cluster: Cluster, key: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key=key, max_retries=0) as client:
        yield client


async def test_without_a_key_nothing_but_health_answers(keys: Keys, start: Callable[..., Any]) -> None:
    keys.create()
    async with start() as cluster:
        for path in ("/healthz", "/readyz", "/", "/api/version"):
            assert (await cluster.http.get(path)).status_code == 200
        answer = await cluster.http.post(CHAT, json=BODY)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await cluster.http.get("/api/tags")).json() == {"error": "unauthorized"}
        anthropics = await cluster.http.post("/v1/messages", json=BODY)
        assert (anthropics.status_code, anthropics.json()["error"]["type"]) == (401, "authentication_error")


async def test_both_headers_open_and_two_keys_or_one_twice_do_not(keys: Keys, start: Callable[..., Any]) -> None:
    key, other = keys.create(), keys.create()
    async with start() as cluster:

        async def status(*headers: tuple[str, str]) -> int:
            answer: httpx.Response = await cluster.http.get("/api/tags", headers=list(headers))
            return answer.status_code

        one, two = f"Bearer {key}", f"Bearer {other}"
        assert await status(("authorization", one)) == 200
        assert await status(("authorization", two)) == 200
        assert await status(("x-api-key", key)) == 200
        assert await status(("authorization", one), ("x-api-key", key)) == 200
        assert await status(("authorization", one), ("x-api-key", other)) == 401
        assert await status(("authorization", one), ("authorization", one)) == 401
        assert await status(("authorization", f"Basic {key}")) == 401
        assert await status(("authorization", one[:-1])) == 401


async def test_the_official_clients_raise_what_their_users_catch(keys: Keys, start: Callable[..., Any]) -> None:
    reader, limited = keys.create(scopes=("models:read",)), keys.create("bob", requests_per_minute=1)
    async with start() as cluster:
        async with openai_client(cluster, "wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with openai_client(cluster, reader) as client:
            assert (await client.models.list()).data
            with pytest.raises(openai.PermissionDeniedError):
                await client.chat.completions.create(**BODY)
        async with openai_client(cluster, limited) as client:
            await client.chat.completions.create(**BODY)
            with pytest.raises(openai.RateLimitError) as refusal:
                await client.chat.completions.create(**BODY)
            headers = refusal.value.response.headers
            assert headers["x-ratelimit-limit-requests"] == "1"
            assert headers["x-ratelimit-remaining-requests"] == "0"
            assert re.fullmatch(r"1m0s|\d\d(\.\d+)?s", headers["x-ratelimit-reset-requests"])
            assert 10 <= int(headers["retry-after"]) <= 60
        for key, kind in (("wrong", anthropic.AuthenticationError), (reader, anthropic.PermissionDeniedError)):
            async with anthropic.AsyncAnthropic(base_url=cluster.url, api_key=key, max_retries=0) as claude:
                with pytest.raises(kind):
                    await claude.messages.create(max_tokens=8, **BODY)
        async with anthropic.AsyncAnthropic(base_url=cluster.url, api_key=limited, max_retries=0) as claude:
            with pytest.raises(anthropic.RateLimitError) as refused:
                await claude.messages.create(max_tokens=8, **BODY)
            assert refused.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
            assert re.fullmatch(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
                refused.value.response.headers["anthropic-ratelimit-requests-reset"],
            )
        for key, code in (("wrong", 401), (reader, 403), (limited, 429)):
            client_of_ollama = ollama.AsyncClient(host=cluster.url, headers=bearer(key))
            with pytest.raises(ollama.ResponseError) as error:
                await client_of_ollama.chat("demo", BODY["messages"])
            await client_of_ollama._client.aclose()
            assert error.value.status_code == code


async def test_grpc_asks_for_the_same_keys(keys: Keys, start: Callable[..., Any]) -> None:
    key, reader = keys.create(concurrency=1), keys.create("bob", scopes=("models:read",))
    async with start() as cluster, aio.insecure_channel(cluster.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.ChatRequest(
            model="demo", messages=[inference_pb2.ChatMessage(role="user", content="Hello")]
        )

        async def code(*metadata: tuple[str, str]) -> grpc.StatusCode:
            try:
                async for _ in stub.Chat(request, metadata=metadata):
                    pass
            except aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        assert await code() is grpc.StatusCode.UNAUTHENTICATED
        assert await code(("authorization", "Bearer wrong")) is grpc.StatusCode.UNAUTHENTICATED
        assert await code(("authorization", f"Bearer {reader}")) is grpc.StatusCode.PERMISSION_DENIED
        for _ in range(3):  # one at a time, each of which leaves
            assert await code(("authorization", f"Bearer {key}")) is grpc.StatusCode.OK
        models = await stub.ListModels(inference_pb2.ListModelsRequest(), metadata=(("x-api-key", reader),))
        assert [model.model.name for model in models.models] == ["demo:latest"]


async def test_twenty_bad_keys_a_minute_are_answered_then_429(keys: Keys, start: Callable[..., Any]) -> None:
    good = keys.create()
    async with start() as cluster:
        statuses: list[int] = []
        while 429 not in statuses and len(statuses) < 3 * FAILURES_PER_MINUTE:  # one more for every 3 s that it takes
            answer = await cluster.http.get("/api/tags", headers=bearer("x"))
            statuses.append(answer.status_code)
        assert set(statuses[:FAILURES_PER_MINUTE]) == {401}
        assert statuses[-1] == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert (await cluster.http.get("/api/tags", headers=bearer(good))).status_code == 200


async def test_a_revoked_key_is_refused_within_five_seconds_and_a_new_one_accepted(
    keys: Keys, start: Callable[..., Any]
) -> None:
    key = keys.create()
    async with start() as cluster:
        assert (await cluster.http.get("/api/tags", headers=bearer(key))).status_code == 200
        keys.revoke(key)
        second = keys.create()
        store_seen = await _status_becomes(cluster, key, 401)
        assert store_seen
        assert (await cluster.http.get("/api/tags", headers=bearer(second))).status_code == 200


async def _status_becomes(cluster: Cluster, key: str, status: int) -> bool:
    """Ask four times a second at most, so that failures are not counted out."""
    watch = Stopwatch()
    while (await cluster.http.get("/api/tags", headers=bearer(key))).status_code != status:
        assert not watch.is_past(5.0)
        await next_look(0.25)
    return True


def keys_generation() -> float:
    return REGISTRY.get_sample_value("puna_config_generation", {"file": "keys"}) or 0.0


async def test_a_broken_file_keeps_the_last_keys_and_says_so(keys: Keys, start: Callable[..., Any]) -> None:
    key = keys.create()
    async with start() as cluster:
        good, before = keys.path.read_text(encoding="utf-8"), keys_generation()
        keys.path.write_text("{", encoding="utf-8")
        said: list[str] = []

        def was_said() -> bool:
            out, err = keys.capsys.readouterr()
            said.append(out + err)
            return "keys.broken" in "".join(said)

        await eventually(was_said)
        assert (await cluster.http.get("/api/tags", headers=bearer(key))).status_code == 200
        assert (await cluster.http.get("/api/tags")).status_code == 401
        assert keys_generation() == before
        keys.path.write_text(good, encoding="utf-8")
        await eventually(lambda: keys_generation() == before + 1)
        assert (await cluster.http.get("/api/tags", headers=bearer(key))).status_code == 200


async def test_the_body_of_who_may_not_ask_is_not_read(keys: Keys, start: Callable[..., Any]) -> None:
    reader = keys.create(scopes=("models:read",))
    async with start() as cluster:
        answer = await cluster.http.post(CHAT, content=b"no json at all", headers=bearer(reader))
        assert answer.status_code == 403


async def test_requests_at_once_are_limited_and_the_place_comes_back(keys: Keys, start: Callable[..., Any]) -> None:
    key = keys.create(concurrency=1)
    async with start() as cluster:
        goes_on = asyncio.Event()

        async def held(_: object) -> None:
            await goes_on.wait()

        cluster.runner.before = held
        first = asyncio.create_task(cluster.http.post(CHAT, json=BODY, headers=bearer(key)))
        await eventually(lambda: cluster.gateway.service.feeds != set())
        refused = await cluster.http.post(CHAT, json=BODY, headers=bearer(key))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        goes_on.set()
        assert (await first).status_code == 200
        assert (await cluster.http.post(CHAT, json=BODY, headers=bearer(key))).status_code == 200


async def test_no_secret_is_in_any_log(keys: Keys, start: Callable[..., Any]) -> None:
    key = keys.create()
    async with start() as cluster:
        secret = key.split("_")[2]
        for headers in (bearer(key), {"x-api-key": key}, bearer(key[:-1]), bearer(key + "x")):
            await cluster.http.post(CHAT, json=BODY, headers=headers)
            await cluster.http.get("/nowhere", headers=headers)
        out, err = keys.capsys.readouterr()
        assert "request.ended" in out + err
        assert secret not in out + err


async def test_without_a_file_any_key_is_good(cluster: Cluster) -> None:
    for headers in ({}, bearer("any"), {"x-api-key": "other", **bearer("any")}, {"authorization": "Basic x"}):
        answer: httpx.Response = await cluster.http.post(CHAT, json=BODY, headers=headers)
        assert answer.status_code == 200
        assert "x-ratelimit-limit-requests" not in answer.headers


async def test_an_open_listener_needs_keys_or_consent(keys: Keys, start_cluster: StartCluster) -> None:
    none: Any = None
    with pytest.raises(StartupError, match="PUNA_API_KEYS_FILE"):
        async with running_gateway(GatewaySettings(host=FAR_ADDRESS), scheduler=none):
            pass
    missing = GatewaySettings(host=FAR_ADDRESS, api_keys_file=str(keys.path))
    with pytest.raises(StartupError, match="puna keys create"):
        async with running_gateway(missing, scheduler=none):
            pass
    keys.create()
    keys.path.chmod(0o640)
    with pytest.raises(StartupError, match="0600"):
        async with running_gateway(missing, scheduler=none):
            pass
    keys.path.chmod(0o600)
    async with start_cluster(host=FAR_ADDRESS, grpc_host=FAR_ADDRESS, api_keys_file=str(keys.path)) as cluster:
        port = cluster.gateway.http_address.rpartition(":")[2]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/api/tags")).status_code == 401


async def test_tokens_are_reserved_and_settled_to_what_was_used(keys: Keys, start: Callable[..., Any]) -> None:
    key = keys.create(tokens_per_minute=30)
    async with start() as cluster:

        async def ask(max_tokens: int) -> httpx.Response:
            body = {**BODY, "max_tokens": max_tokens}
            answer: httpx.Response = await cluster.http.post(CHAT, json=body, headers=bearer(key))
            return answer

        first = await ask(14)
        used = first.json()["usage"]["total_tokens"]
        assert used <= 9
        # What was not used came back, else the second would not be let in.
        second = await ask(18)
        assert second.status_code == 200
        refused = await ask(28)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-limit-tokens"] == "30"
        assert int(refused.headers["x-ratelimit-remaining-tokens"]) >= 30 - 2 * used


async def test_models_of_others_do_not_exist(keys: Keys, start: Callable[..., Any]) -> None:
    all_scopes = (*SCOPES, "models:write", "admin:cluster")
    key, other = keys.create(models=["Demo"]), keys.create("bob", all_scopes, models=["another"])
    async with start() as cluster:
        assert (await cluster.http.post(CHAT, json=BODY, headers=bearer(key))).status_code == 200
        async with openai_client(cluster, other) as client:
            assert (await client.models.list()).data == []
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("demo")
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(**BODY)
        for method, path, body in (
            ("POST", "/api/show", {"model": "demo"}),
            ("POST", "/api/embed", {"model": "demo", "input": "x"}),
            ("POST", "/puna/v1/load", {"model": "demo"}),
            ("POST", "/puna/v1/unload", {"model": "demo"}),
            ("GET", "/puna/v1/placements/demo", None),
            ("PUT", "/puna/v1/placements/demo", {}),
            ("GET", "/puna/v1/explain?model=demo", None),
        ):
            answer = await cluster.http.request(method, path, json=body, headers=bearer(other))
            assert (path, answer.status_code) == (path, 404)
        for path in ("/api/tags", "/api/ps", "/puna/v1/placements"):
            assert "demo" not in (await cluster.http.get(path, headers=bearer(other))).text


async def test_what_a_scope_forbids_in_a_body_is_ignored_and_named(keys: Keys, start: Callable[..., Any]) -> None:
    user, manager = keys.create(), keys.create("bob", (*SCOPES, "models:write"))
    body = {
        "model": "demo",
        "prompt": "Hello",
        "template": "{{ .Prompt }}",
        "stream": False,
        "keep_alive": "48h",
        "options": {"num_gpu": 1},
    }
    async with start() as cluster:
        answer = await cluster.http.post("/api/generate", json=body, headers=bearer(user))
        assert (answer.status_code, answer.headers["x-puna-ignored"]) == (200, "num_gpu, template")
        assert cluster.runner.requests[-1].keep_alive_ms == 24 * 3600 * 1000
        assert cluster.gateway.service.keep_alive_max_ms == 24 * 3600 * 1000
        del body["template"], body["options"]
        answer = await cluster.http.post("/api/generate", json=body, headers=bearer(manager))
        assert "x-puna-ignored" not in answer.headers
        assert cluster.runner.requests[-1].keep_alive_ms == 48 * 3600 * 1000


async def test_a_quiet_tenant_is_served_next_to_a_loud_one(keys: Keys, start: Callable[..., Any]) -> None:
    loud, quiet = keys.create("loud"), keys.create("quiet")
    goes_on = asyncio.Event()

    async def held(_: object) -> None:
        await goes_on.wait()

    async with start(runner=ScriptedRunner(slots=1, before=held)) as cluster:

        async def ask(key: str, text: str) -> int:
            body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
            answer: httpx.Response = await cluster.http.post(CHAT, json=body, headers=bearer(key))
            return answer.status_code

        def waiting() -> int:
            return sum(cluster.gateway.service.inference.dispatcher.depths().values())

        asked = [asyncio.create_task(ask(loud, f"loud {number}")) for number in range(8)]
        await eventually(lambda: waiting() == 7)
        asked.append(asyncio.create_task(ask(quiet, "quiet")))
        await eventually(lambda: waiting() == 8)
        goes_on.set()
        assert set(await asyncio.gather(*asked)) == {200}
        order = ["quiet" in str(request) for request in cluster.runner.requests]
        assert order.index(True) <= 2  # the one that ran already, and one more at most


async def test_the_context_of_a_key_is_the_longest_that_its_requests_get(keys: Keys, start: Callable[..., Any]) -> None:
    short, free = keys.create("ada", context_tokens=128), keys.create("bob")
    async with start() as cluster:

        async def asked(key: str, **options: int) -> int | None:
            answer = await cluster.http.post(CHAT, json=BODY | {"options": options}, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            request = cluster.runner.requests[-1]
            return request.context_tokens if request.HasField("context_tokens") else None

        whole = await asked(free)
        assert whole is None or whole > 128
        assert [await asked(short), await asked(short, num_ctx=64), await asked(short, num_ctx=512)] == [128, 64, 128]

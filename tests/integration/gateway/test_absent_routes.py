"""Routes of other servers that are not here: each says so in its dialect, and none reads like a wrong base URL."""

import openai
import pytest

from gateway.http.openai.absent_routes import absent_routes
from tests.integration.gateway.conftest import Cluster

PATHS = [route.path.partition("/{")[0] for route in absent_routes()]


@pytest.mark.parametrize("path", PATHS)
async def test_an_absent_family_is_501_with_one_sentence_whatever_is_asked(cluster: Cluster, path: str) -> None:
    for method, url in (
        ("GET", path),
        ("POST", path),
        ("POST", f"{path}/one/more"),
        ("DELETE", f"{path}/one"),
        ("PATCH", f"{path}/one"),
    ):
        answer = await cluster.http.request(method, url)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (501, "false"), (method, url)
        body = answer.json()
        error = body["error"]
        assert error["message"].startswith(f"{method} {path} is not supported: this server has no API for ")
        if path.startswith("/v1/messages/"):
            assert (body["type"], error["type"]) == ("error", "api_error")
        else:
            assert (error["type"], error["code"]) == ("invalid_request_error", "not_supported")


async def test_a_path_that_only_begins_like_a_family_is_unknown(cluster: Cluster) -> None:
    for path in ("/v1/filesystem", "/v1/file", "/files", "/v1/responses/resp_1"):
        assert (await cluster.http.get(path)).status_code == 404


async def test_a_file_that_is_sent_to_an_absent_route_is_refused_unread(cluster: Cluster) -> None:
    with pytest.raises(openai.InternalServerError) as refused:
        await cluster.openai.audio.transcriptions.create(model="whisper-1", file=("a.wav", b"x" * 2_000_000))
    assert (refused.value.status_code, refused.value.code) == (501, "not_supported")
    assert "speech and transcription" in refused.value.message


@pytest.mark.parametrize("path", ["/healthz", "/health", "/v1/health"])
async def test_health_is_answered_as_llama_server_does(cluster: Cluster, path: str) -> None:
    answer = await cluster.http.get(path)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})

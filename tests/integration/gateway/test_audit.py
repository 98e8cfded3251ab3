"""The audit log: what is in it, what never is, and what happens when it cannot be written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from typer.testing import CliRunner

from cli.command_line import app
from common.audit.chain import ChainBrokenError, check_chain
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.router import Route
from protos import inference_pb2_grpc, scheduler_pb2
from tests.integration.gateway.conftest import Cluster
from tests.integration.gateway.scripted import ScriptedScheduler
from tests.integration.gateway.test_gateway_keys import CHAT, Keys, bearer, keys, start
from tools.audit_table import administrative_routes

__all__ = ["keys", "start"]  # fixtures
ALIAS = "/puna/v1/aliases/second"
CANARY = "canary-in-a-prompt"
SCOPES = ("infer", "embed", "models:read", "metrics", "admin:cluster")
EVERY_SCOPE = tuple(str(scope) for scope in Scope)
DIGEST = "ab" * 32  # of the scripted model
FENCE = 41


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def set_alias(cluster: Cluster, key: str) -> int:
    return int((await cluster.http.put(ALIAS, json={"model": "demo"}, headers=bearer(key))).status_code)


async def test_decisions_and_ends_are_in_it_and_no_text_of_anyone(
    keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, admin, reader = tmp_path / "audit", keys.create(scopes=SCOPES), keys.create("bob", scopes=("models:read",))
    async with start(audit_log=str(path)) as cluster:
        assert await set_alias(cluster, admin) == 200
        assert await set_alias(cluster, reader) == 403
        body = {"model": "demo", "messages": [{"role": "user", "content": CANARY}]}
        assert (await cluster.http.post(CHAT, json=body, headers=bearer(admin))).status_code == 200
        assert (await cluster.http.post(CHAT, json=body)).status_code == 401
        await cluster.http.get("/healthz")
    allowed, ended, denied, answered, stranger = lines_of(path)
    act = "PUT /puna/v1/aliases/{alias}"
    assert (allowed["decision"], allowed["rule"], allowed["act"]) == ("allowed", "admin:cluster", act)
    assert allowed["key"] == admin.split("_")[1]
    assert (ended["request_id"], ended["status"], ended["tenant"]) == (allowed["request_id"], "200", "ada")
    assert (denied["decision"], denied["rule"], denied["key"]) == ("denied", "permission_denied", reader.split("_")[1])
    assert (answered["model"], answered["status"]) == ("demo:latest", "200")
    assert answered["completion_tokens"] > 0
    assert answered["duration_ms"] > 0
    assert (stranger["decision"], stranger["rule"], stranger.get("key")) == ("denied", "invalid_api_key", None)
    text = path.read_text()
    assert not [one for one in (CANARY, admin, reader, admin.split("_")[2]) if one in text]
    assert path.stat().st_mode & 0o777 == 0o600
    assert check_chain(path.read_bytes().splitlines()) == 5


async def test_acts_on_replicas_have_placement_fence_and_digest(
    keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, key = tmp_path / "audit", keys.create(scopes=EVERY_SCOPE)
    scheduler = ScriptedScheduler(fence=FENCE)
    async with start(audit_log=str(path), scheduler=scheduler, warm=False) as cluster:
        placement = [f"{cluster.runner.placement.placement_id}/{cluster.runner.placement.generation}"]
        loaded = await cluster.http.post("/puna/v1/load", json={"model": "demo"}, headers=bearer(key))
        assert loaded.status_code == 200
        async with aio.insecure_channel(cluster.gateway.grpc_address) as channel:
            unload = inference_pb2_grpc.InferenceStub(channel).UnloadModel
            request = scheduler_pb2.UnloadModelRequest(model_name="demo")
            call = unload(request, metadata=(("authorization", f"Bearer {key}"),))
            told = dict(await call.initial_metadata())["x-request-id"]
            await call
        drained = await cluster.http.post("/puna/v1/nodes/node-1/drain", headers=bearer(key))
        assert drained.status_code == 200
    load, loaded_line, unload_line, unloaded, drain, _ = lines_of(path)
    assert (load["act"], load["fence"], load["decision"]) == ("POST /puna/v1/load", FENCE, "allowed")
    assert (loaded_line["digest"], loaded_line["placements"], loaded_line["fence"]) == (DIGEST, placement, FENCE)
    assert (unload_line["act"], unload_line["object"]) == ("/puna.v1.Inference/UnloadModel", "demo")
    assert unload_line["request_id"] == unloaded["request_id"] == told
    assert (unloaded["digest"], unloaded["placements"], unloaded["status"]) == (DIGEST, placement, "OK")
    assert (drain["object"], drain["fence"]) == ("node-1", FENCE)


@pytest.mark.parametrize("route", administrative_routes(), ids=lambda route: f"{route.method} {route.path}")
async def test_every_administrative_route_leaves_a_line_before_it_does_anything(
    route: Route, keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, key = tmp_path / "audit", keys.create(scopes=EVERY_SCOPE)
    named = re.sub(r"\{\w+\}", key, route.path)  # of a person who takes the key for its id
    async with start(audit_log=str(path)) as cluster:
        headers = bearer(key) | {"content-type": "application/json"}
        await cluster.http.request(route.method, named, content=b"{}", headers=headers)
    first, *_ = lines_of(path)
    assert (first["act"], first["decision"]) == (f"{route.method} {route.path}", "allowed")
    assert key.split("_")[2] not in path.read_text()
    if named != route.path:
        assert first["object"] == f"puna_{key.split('_')[1]}…"


async def test_what_cannot_be_logged_is_not_done_and_answers_go_on(
    keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, key = tmp_path / "audit", keys.create(scopes=SCOPES)
    async with start(audit_log=str(path)) as cluster:
        path.unlink()
        path.mkdir()  # no file can be opened there
        refused = await cluster.http.put(ALIAS, json={"model": "demo"}, headers=bearer(key))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "audit_unavailable")
        assert "nothing was changed" in refused.json()["error"]["message"]
        aliases = await cluster.http.get("/puna/v1/aliases", headers=bearer(key))
        assert aliases.json()["aliases"] == []
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}
        assert (await cluster.http.post(CHAT, json=body, headers=bearer(key))).status_code == 200
        metrics = (await cluster.http.get("/metrics", headers=bearer(key))).text
        path.rmdir()
        assert await set_alias(cluster, key) == 200
    lost = next(line for line in metrics.splitlines() if line.startswith("puna_gateway_audit_lost_total "))
    assert float(lost.split()[1]) >= 1
    assert check_chain(path.read_bytes().splitlines()) == 2


async def test_the_chain_goes_on_over_a_rotation_a_restart_and_a_line_that_was_cut(
    keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, older, key = tmp_path / "audit", tmp_path / "audit.1", keys.create(scopes=SCOPES)
    async with start(audit_log=str(path)) as cluster:
        assert await set_alias(cluster, key) == 200
        path.rename(older)
        assert await set_alias(cluster, key) == 200
    with path.open("ab") as file:
        file.write(b'{"time":"2026')  # a crash in the middle of a line
    async with start(audit_log=str(path)) as cluster:
        assert await set_alias(cluster, key) == 200
    lines = [*older.read_bytes().splitlines(), *path.read_bytes().splitlines()]
    assert check_chain(lines) == 6
    with pytest.raises(ChainBrokenError, match="line 3 "):
        check_chain([*lines[:2], *lines[3:]])


async def test_the_command_names_the_line_that_was_changed(
    keys: Keys, start: Callable[..., Any], tmp_path: Path
) -> None:
    path, key = tmp_path / "audit", keys.create(scopes=SCOPES)
    async with start(audit_log=str(path)) as cluster:
        assert await set_alias(cluster, key) == 200
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert (done.exit_code, done.stdout.split(", ")[0]) == (0, "2 lines")
    path.write_text(path.read_text().replace('"status":"200"', '"status":"403"'))
    done = CliRunner().invoke(app, ["audit", str(path)])
    assert done.exception is not None
    assert "line 2 was changed" in str(done.exception)


async def test_a_link_in_its_place_is_refused(start: Callable[..., Any], keys: Keys, tmp_path: Path) -> None:
    keys.create()
    (tmp_path / "audit").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="PUNA_AUDIT_LOG"):
        async with start(audit_log=str(tmp_path / "audit")):
            pass
    assert not (tmp_path / "elsewhere").exists()

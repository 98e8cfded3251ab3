"""Every route of the table with every kind of caller. The matrix is made from the table: a new route is in it."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, cast

import grpc
import httpx
import pytest
from redis import Redis

from cli.cluster.plan import embedded_redis_server
from cli.commands.keys import create, revoke
from gateway.core.keys.keys import Scope
from gateway.grpc.grpc_keys import SCOPES
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from tests.gateway_process import GatewayProcess, gateway_process
from tests.waiting import wait_until

# Nothing is asked of a service until a request comes.
_NOTHING: dict[str, Any] = {field.name: None for field in fields(Service) if field.init and field.default is MISSING}
ROUTES = make_routes(Service(**(_NOTHING | {"version": "0"})))
GUARDED = [route for route in ROUTES if route.scope is not None]
ANY_KEY = [route for route in ROUTES if route.scope is None and route.needs_key]
OPEN = [route for route in ROUTES if route.scope is None and not route.needs_key]
FOREIGN_MODEL = "demo"
EVERY_SCOPE = tuple(str(scope) for scope in Scope)
# What a caller who is let in may get: the request is empty, so most say what is missing.
REFUSALS = {401, 403, 429}
SEEN_WITHIN_S = 5.0


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


@dataclass(frozen=True, slots=True)
class Locked:
    """A gateway with keys, and a Redis."""

    gateway: GatewayProcess
    file: Path
    redis: Path
    full: str
    by_missing_scope: dict[str, str]  # has every scope but this one
    expired: str
    foreign: str  # has every scope, but is for another tenant's model only
    from_elsewhere: str
    client: httpx.Client

    def ask(self, route: Route, key: str | None = None, path: str | None = None, **headers: str) -> httpx.Response:
        sent = {"content-type": "application/json", **headers}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        body = b"{}" if route.body is not None else None
        url = self.gateway.url + (path or path_of(route))
        with self.client.stream(route.methods[0], url, headers=sent, content=body) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):  # may never end
                answer.read()
            return answer


def path_of(route: Route) -> str:
    """A path of a route: something stands where it has a name."""
    head, brace, tail = route.path.partition("{")
    if not brace:
        return route.path
    return head + "nothing" + tail.partition("}")[2]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    directory = tmp_path_factory.mktemp("authz")
    file, redis = directory / "keys.json", directory / "redis.sock"
    texts: list[str] = []

    def make(owner: str, scopes: tuple[str, ...] = EVERY_SCOPE, **options: Any) -> str:
        create({"owner": owner, "tenant": owner, "scopes": list(scopes), **options}, file, as_json=True)
        return texts[-1]

    with pytest.MonkeyPatch.context() as patch, redis_on(redis):
        patch.setattr("cli.commands.keys.print_answer", lambda answer, _, **__: texts.append(answer["key"]))
        missing = {one: make(f"no-{index}", tuple(set(EVERY_SCOPE) - {one})) for index, one in enumerate(EVERY_SCOPE)}
        expired = make("late", expires="1s")
        full, foreign = make("root"), make("far", models=["other"])
        elsewhere = make("away", networks=["192.0.2.0/24"])
        with (
            gateway_process(directory, api_keys_file=str(file), redis_url=f"unix://{redis}") as gateway,
            httpx.Client(timeout=60) as client,
        ):
            running = Locked(gateway, file, redis, full, missing, expired, foreign, elsewhere, client)
            tags = next(route for route in GUARDED if route.path == "/api/tags")
            wait_until(lambda: running.ask(tags, expired).status_code == 401, deadline_s=30, what="a key expires")
            yield running


@contextmanager
def redis_on(path: Path) -> Iterator[None]:
    command = [str(embedded_redis_server()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    with subprocess.Popen(command, cwd=path.parent, stdout=subprocess.DEVNULL) as process:
        wait_until(path.exists, deadline_s=30, what="redis-server listens")
        try:
            yield
        finally:
            process.kill()


def test_no_route_is_open_by_mistake() -> None:
    assert {route.path for route in OPEN} <= {
        "/", "/api/version", "/api/status", "/healthz", "/health", "/v1/health", "/readyz", "/openapi.json", "/ui",
        *_pages(),
    }  # fmt: skip


def _pages() -> set[str]:
    """Static pages, which hold nothing of anybody."""
    return {route.path for route in OPEN if route.path.startswith("/ui")}


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
def test_a_route_opens_to_its_scope_and_to_nothing_else(route: Route, locked: Locked) -> None:
    assert route.scope is not None
    assert locked.ask(route, locked.full).status_code not in REFUSALS
    others = [key for scope, key in locked.by_missing_scope.items() if scope != route.scope]
    assert locked.ask(route, others[0]).status_code not in REFUSALS
    refused = {
        "wrong scope": (403, locked.ask(route, locked.by_missing_scope[route.scope])),
        "elsewhere": (403, locked.ask(route, locked.from_elsewhere)),
        "forged host": (403, locked.ask(route, locked.full, host="evil.example")),
        "foreign origin": (403, locked.ask(route, locked.full, origin="https://evil.example")),
    }
    assert {what: answer.status_code for what, (_, answer) in refused.items()} == {
        what: status for what, (status, _) in refused.items()
    }
    # 401 until this address has failed too often, then 429: both say nothing but no.
    wrong = locked.full[:-1] + ("a" if locked.full[-1] != "a" else "b")
    other_secret = f"puna_{locked.full.split('_')[1]}_{'A' * 43}_{'0' * 6}"
    for key in (None, "x", wrong, other_secret, locked.expired, locked.full + " " + locked.full):
        assert locked.ask(route, key).status_code in (401, 429)
    two = locked.ask(route, locked.full, **{"x-api-key": locked.foreign})
    assert two.status_code in (401, 429)
    assert locked.ask(route, "A" * 15_000).status_code in (400, 401, 429)


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
def test_no_spelling_of_a_path_is_another_way_in(route: Route, locked: Locked) -> None:
    path = path_of(route)
    spellings = (
        "/" + path, path.upper(), path + "/", path + "/.", "/healthz/.." + path, "/x/../" + path[1:], path + ";a=b",
        path.replace("/", "/%2e/", 1), path.replace("/", "%2f"), path + "%00", path + "?key=x", path + "#x",
        "/%68ealthz/.." + path, path.replace("a", "%61", 1),
    )  # fmt: skip
    for spelling in spellings:
        answer = raw(locked, route.methods[0], spelling)
        assert answer in (400, 401, 403, 404, 405, 429), spelling


def raw(locked: Locked, method: str, target: str) -> int:
    """The status of a request line as it is, without a key."""
    with socket.create_connection((locked.gateway.host, locked.gateway.port), timeout=60) as peer:
        peer.sendall(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        parts = b""
        while b"\r\n" not in parts and (part := peer.recv(4096)):
            parts += part
    return int(parts.split(b" ")[1]) if parts else 400


@pytest.mark.parametrize("route", ANY_KEY, ids=name_of)
def test_what_any_key_opens_needs_one(route: Route, locked: Locked) -> None:
    assert locked.ask(route, locked.foreign).status_code not in REFUSALS
    for key in (None, "x", locked.expired):
        assert locked.ask(route, key).status_code in (401, 429)


@pytest.mark.parametrize("route", OPEN, ids=name_of)
def test_what_is_open_stays_open_and_reads_no_key(route: Route, locked: Locked) -> None:
    for key in (None, "x", locked.expired):
        assert locked.ask(route, key).status_code not in REFUSALS


def test_routes_that_are_not_there_say_so_to_everybody(locked: Locked) -> None:
    for path in ("/v1/nothing", "/api/nothing", "/puna/v1/secrets", "/admin", "/.env", "/api/keys"):
        assert httpx.get(locked.gateway.url + path, timeout=60).status_code == 404


def test_what_belongs_to_others_does_not_exist(locked: Locked) -> None:
    """IN37: a key that is for another model sees neither this one nor that it is there."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        "/api/chat": {"messages": [{"role": "user", "content": "x"}]},
        "/api/generate": {"prompt": "x"},
        "/api/show": {},
        "/puna/v1/load": {},
    }
    headers = {"authorization": f"Bearer {locked.foreign}"}
    with httpx.Client(base_url=locked.gateway.url, headers=headers, timeout=60) as client:
        for path, body in bodies.items():
            there = client.post(path, json={**body, "model": FOREIGN_MODEL})
            nowhere = client.post(path, json={**body, "model": "nowhere"})
            assert there.status_code == nowhere.status_code == 404, path
            said, wanted = (answer.text.split("request_id")[0] for answer in (there, nowhere))
            assert said.replace(FOREIGN_MODEL, "nowhere") == wanted
        assert client.get("/api/tags").json()["models"] == []
        assert client.get(f"/puna/v1/placements/{FOREIGN_MODEL}").status_code == 404


@pytest.mark.parametrize("method", sorted(SCOPES))
def test_grpc_methods_open_to_their_scope_and_to_nothing_else(method: str, locked: Locked) -> None:
    with grpc.insecure_channel(locked.gateway.grpc_address) as channel:
        path = f"/puna.v1.Inference/{method}"
        call = channel.unary_stream(path, request_serializer=bytes, response_deserializer=bytes)

        def code(key: str | None) -> str:
            metadata = (("authorization", f"Bearer {key}"),) if key is not None else ()
            try:
                for _ in call(b"", metadata=metadata, timeout=60):
                    pass
            except grpc.RpcError as error:
                return str(cast("Any", error).code().name)
            return "OK"

        no = {"UNAUTHENTICATED", "RESOURCE_EXHAUSTED"}
        assert code(locked.full) not in {*no, "PERMISSION_DENIED", "INTERNAL", "UNKNOWN"}
        assert code(locked.by_missing_scope[SCOPES[method]]) == "PERMISSION_DENIED"
        for key in (None, "x", locked.expired):
            assert code(key) in no


def test_a_revoked_key_is_refused_on_every_route_within_five_seconds(locked: Locked) -> None:
    texts: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cli.commands.keys.print_answer", lambda answer, _, **__: texts.append(answer.get("key", "")))
        create({"owner": "gone", "tenant": "gone", "scopes": list(EVERY_SCOPE)}, locked.file, as_json=True)
        key, tags = texts[-1], next(route for route in GUARDED if route.path == "/api/tags")
        wait_until(lambda: locked.ask(tags, key).status_code == 200, deadline_s=30, what="the key is known")
        revoke(key.split("_")[1], locked.file, as_json=True)
    wait_until(lambda: locked.ask(tags, key).status_code != 200, deadline_s=SEEN_WITHIN_S, what="the key is refused")
    assert {locked.ask(route, key).status_code for route in GUARDED} <= {401, 429}


def test_key_material_is_in_no_log_no_metric_and_not_in_redis(locked: Locked) -> None:
    made = httpx.post(
        locked.gateway.url + "/puna/v1/keys",
        json={"owner": "canary"},
        headers={"authorization": f"Bearer {locked.full}"},
        timeout=60,
    ).json()["key"]
    headers = {"authorization": f"Bearer {made}"}
    httpx.post(locked.gateway.url + "/api/chat", json={"model": "demo"}, headers=headers, timeout=60)
    httpx.get(f"{locked.gateway.url}/nowhere/{made}", headers=headers, timeout=60)
    httpx.get(
        f"{locked.gateway.url}/puna/v1/keys/{made}", headers={"authorization": f"Bearer {locked.full}"}, timeout=60
    )
    metrics = httpx.get(
        locked.gateway.url + "/metrics", headers={"authorization": f"Bearer {locked.full}"}, timeout=60
    ).text
    with Redis(unix_socket_path=str(locked.redis), decode_responses=True) as client:
        stored = json.dumps([_content(client, name) for name in client.scan_iter("*")])
    assert made.split("_")[1] in stored, "the key is there, as its HMAC"
    places = {
        "log": locked.gateway.log.read_text(),
        "metrics": metrics,
        "redis": stored,
        "cache": locked.file.with_name("keys.json.cache").read_text(),
        "file": locked.file.read_text(),
    }
    assert "puna_gateway_key_store_up 1.0" in metrics
    for secret in (key.split("_")[2] for key in (made, locked.full, locked.foreign, locked.expired)):
        assert [place for place, text in places.items() if secret in text] == []


def _content(client: Any, name: str) -> Any:
    kind = client.type(name)
    match kind:
        case "hash":
            return client.hgetall(name)
        case "zset":
            return client.zrange(name, 0, -1)
        case _:
            return client.get(name)

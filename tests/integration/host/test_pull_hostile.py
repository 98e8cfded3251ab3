"""Registries that answer badly on purpose: nothing secret leaves, nothing wrong gets a name, everything ends."""

import gzip
import hashlib
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from common.errors import DigestMismatch, InvalidRequest, ModelNotFound, RegistryFailed
from common.grpc.server import bind_server
from protos import store_pb2_grpc
from runner.core.registry.addresses import Reach
from runner.core.registry.credentials import Credentials
from runner.core.store.manifest import CONFIG_TYPE, DOCKER_MANIFEST, MANIFEST_BYTES_MAX
from runner.host.registry.client import Secrets
from runner.host.registry.transport import REACH, RegistryTransport
from runner.host.store.servicer import ModelStoreServicer
from tests.certificates import write_certificate
from tests.integration.host.pulling import KIB, Store, open_store, random_bytes
from tests.registry import MODEL
from tests.trust import Cluster, acting_as

WEIGHTS = random_bytes(200 * KIB, seed=3)
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
CONFIG = b'{"model_format": "gguf"}'
READER = Credentials(user="reader", password="open sesame")

Answer = tuple[int, dict[str, str], bytes]
Respond = Callable[["Asked"], Answer | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(slots=True)
class ScriptedServer:
    """Answers as a registry does, unless `respond` answers otherwise."""

    http: ThreadingHTTPServer
    respond: Respond = lambda _: None  # nothing special
    asked: list[Asked] = field(default_factory=list)
    manifest: bytes = b""

    @property
    def host(self) -> str:
        """Address and port."""
        return f"{self.http.server_address[0]!s}:{self.http.server_port}"

    def answer(self, asked: Asked) -> Answer:
        """Status, headers and content."""
        self.asked.append(asked)
        said = self.respond(asked)
        if said is not None:
            return said
        if "/manifests/" in asked.path:
            return 200, {}, self.manifest
        return part_of(WEIGHTS if DIGEST in asked.path else CONFIG, asked)


def part_of(content: bytes, asked: Asked) -> Answer:
    """Answer with the range of a blob that is asked for, or all of it."""
    asked_range = asked.headers.get("range", "")
    if not asked_range:
        return 200, {}, content
    start, _, stop = asked_range.removeprefix("bytes=").partition("-")
    part = content[int(start) : int(stop) + 1]
    return 206, {"Content-Range": f"bytes {start}-{stop}/{len(content)}"}, part


def manifest_of(*, size: int = len(WEIGHTS), media_type: str = MODEL, version: int = 2) -> bytes:
    config = {"mediaType": CONFIG_TYPE, "digest": f"sha256:{hashlib.sha256(CONFIG).hexdigest()}", "size": len(CONFIG)}
    layer = {"mediaType": media_type, "digest": f"sha256:{DIGEST}", "size": size}
    return json.dumps(
        {"schemaVersion": version, "mediaType": DOCKER_MANIFEST, "config": config, "layers": [layer]}
    ).encode()


def manifest_with(config: tuple[str, bytes], weights: tuple[str, bytes]) -> bytes:
    """Write the manifest of two blobs, each with its digest."""
    listed = [
        {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(blob)}
        for kind, (digest, blob) in zip((CONFIG_TYPE, MODEL), (config, weights), strict=True)
    ]
    return json.dumps(
        {"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": listed[0], "layers": listed[1:]}
    ).encode()


@contextmanager
def scripted(
    respond: Respond = lambda _: None, *, address: str = "127.0.0.1", port: int = 0
) -> Iterator[ScriptedServer]:
    """A server on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, content = server.answer(Asked(method=self.command, path=self.path, headers=headers))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Silence."""

    http = ThreadingHTTPServer((address, port), Handler)
    server = ScriptedServer(http, respond, manifest=manifest_of())
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


async def pull(tmp_path: Path, server: ScriptedServer, *, allowed: str = "", secrets: Secrets | None = None) -> None:
    async with open_store(tmp_path, allowed or f"http://{server.host}", secrets=secrets) as store:
        await store.pull(f"{server.host}/team/model:latest")
        assert store.blobs.path(DIGEST).read_bytes() == WEIGHTS


async def test_credentials_do_not_follow_a_redirect_to_another_host(tmp_path: Path) -> None:
    with scripted() as elsewhere, scripted() as server:

        def respond(asked: Asked) -> Answer | None:
            if "authorization" not in asked.headers:
                return 401, {"WWW-Authenticate": 'Basic realm="x"'}, b""
            if "/blobs/" in asked.path:
                return 307, {"Location": f"http://{elsewhere.host}{asked.path}"}, b""
            return None

        server.respond = respond
        await pull(tmp_path, server, secrets=Secrets(by_host={server.host: READER}))
        assert any("authorization" in asked.headers for asked in server.asked)
        assert elsewhere.asked
        assert all("authorization" not in asked.headers for asked in elsewhere.asked)


async def test_who_was_redirected_to_cannot_ask_for_credentials(tmp_path: Path) -> None:
    with scripted() as elsewhere, scripted() as server:
        elsewhere.respond = lambda _: (401, {"WWW-Authenticate": 'Basic realm="x"'}, b"")
        server.respond = lambda asked: (
            (302, {"Location": f"http://{elsewhere.host}{asked.path}"}, b"") if "/blobs/" in asked.path else None
        )
        secrets = Secrets(by_host={server.host: READER, elsewhere.host: READER})
        with pytest.raises(RegistryFailed, match="status 401"):
            await pull(tmp_path, server, secrets=secrets)
        assert all("authorization" not in asked.headers for asked in elsewhere.asked)


async def test_redirects_end(tmp_path: Path) -> None:
    with scripted(lambda asked: (302, {"Location": asked.path + "x"}, b"")) as server:
        with pytest.raises(RegistryFailed, match="more than 5 times"):
            await pull(tmp_path, server)
        assert len(server.asked) == 6


def redirecting_to(target: str) -> Respond:
    return lambda asked: (307, {"Location": f"http://{target}{asked.path}"}, b"") if "/blobs/" in asked.path else None


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
    ],
)
async def test_no_registry_sends_a_pull_to_a_link_local_or_special_address(tmp_path: Path, host: str) -> None:
    with (
        scripted(redirecting_to(host)) as server,
        pytest.raises(RegistryFailed, match=r"redirects to .* not followed"),
    ):
        await pull(tmp_path, server)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "[::ffff:127.0.0.1]", "localhost", "localhost."])
async def test_a_registry_elsewhere_does_not_reach_services_of_this_machine(tmp_path: Path, host: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has loopback addresses only")
        own_address = probe.getsockname()[0]
    with scripted() as inside, scripted(address=own_address) as server:
        server.respond = redirecting_to(f"{host}:{inside.host.partition(':')[2]}")
        with pytest.raises(RegistryFailed, match=r"redirects to .* not followed"):
            await pull(tmp_path, server)
        assert inside.asked == []


@contextmanager
def speaking_tls(server: ScriptedServer, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wrap the server's listener with a certificate for "localhost" that clients trust."""
    chain, secret = write_certificate(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, secret)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    yield


async def test_a_name_is_judged_by_its_address_and_certified_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as server, speaking_tls(server, tmp_path, monkeypatch):
        url = f"https://localhost:{server.host.partition(':')[2]}/v2/x/manifests/y"
        async with httpx.AsyncClient(transport=RegistryTransport(connect_timeout_s=10)) as client:
            for allowed in (Reach.PUBLIC, Reach.PRIVATE):
                with pytest.raises(RegistryFailed, match=r"redirects to localhost .* a loopback address"):
                    await client.get(url, extensions={REACH: allowed})
            assert server.asked == []
            answer = await client.get(url, extensions={REACH: Reach.LOOPBACK})
            assert (answer.status_code, answer.extensions[REACH]) == (200, Reach.LOOPBACK)
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await client.get(url.replace("localhost", "127.0.0.1"), extensions={REACH: Reach.LOOPBACK})


async def test_the_target_of_a_redirect_is_asked_under_its_name(tmp_path: Path) -> None:
    with scripted() as elsewhere, scripted() as server:
        name = f"localhost:{elsewhere.host.partition(':')[2]}"
        server.respond = redirecting_to(name)
        await pull(tmp_path, server)
        assert {asked.headers["host"] for asked in elsewhere.asked} == {name}


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (b"x" * (MANIFEST_BYTES_MAX + 1), RegistryFailed, "more than"),
        (b"no json", RegistryFailed, "no JSON"),
        (manifest_of(version=1), RegistryFailed, "schema version 1"),
        (b'{"schemaVersion": 2, "manifests": []}', RegistryFailed, "no list of layers"),
        (manifest_of(media_type="application/x"), InvalidRequest, "no GGUF model"),
        (manifest_of(media_type="application/vnd.ollama.image.tensor"), InvalidRequest, "safetensors"),
        (manifest_of(size=17), RegistryFailed, "its manifest says 17"),
    ],
)
async def test_a_manifest_that_is_none_is_refused(
    tmp_path: Path, content: bytes, error: type[Exception], text: str
) -> None:
    with scripted() as server:
        server.manifest = content
        with pytest.raises(error, match=text):
            await pull(tmp_path, server)
        assert all(asked.method != "GET" or "/manifests/" in asked.path for asked in server.asked)


async def test_a_manifest_of_another_digest_than_announced_is_refused(tmp_path: Path) -> None:
    announced = {"Docker-Content-Digest": "sha256:" + "0" * 64}
    with (
        scripted(lambda asked: (200, announced, manifest_of()) if "/manifests/" in asked.path else None) as server,
        pytest.raises(DigestMismatch, match="expected 'sha256:0000"),
    ):
        await pull(tmp_path, server)


async def test_the_text_of_a_refusal_is_passed_on_and_made_printable(tmp_path: Path) -> None:
    said = json.dumps({"error": "The specified tag is a sharded GGUF.\x1b[31m\nUse another."}).encode()
    with (
        scripted(lambda _: (400, {}, said)) as server,
        pytest.raises(InvalidRequest) as caught,
    ):
        await pull(tmp_path, server)
    assert caught.value.message == "The specified tag is a sharded GGUF. [31m Use another."


async def test_a_blob_that_changes_on_the_way_is_fetched_anew_and_given_up_in_the_end(tmp_path: Path) -> None:
    with (
        scripted(lambda asked: (416, {}, b"") if asked.method == "GET" and DIGEST in asked.path else None) as server,
        pytest.raises(RegistryFailed, match="changes or breaks off"),
    ):
        await pull(tmp_path, server)
    async with open_store(tmp_path, "hf.co") as store:
        assert store.partials() == []


async def test_compressed_blobs_are_not_taken(tmp_path: Path) -> None:
    def respond(asked: Asked) -> Answer | None:
        assert asked.headers.get("accept-encoding") == "identity"
        if asked.method == "GET" and DIGEST in asked.path:
            return 200, {"Content-Encoding": "gzip"}, gzip.compress(WEIGHTS)
        return None

    with scripted(respond) as server, pytest.raises(RegistryFailed, match="compresses"):
        await pull(tmp_path, server)


async def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    busy: Iterator[Answer] = iter([(503, {}, b""), (429, {}, b"")])

    def respond(asked: Asked) -> Answer | None:
        return next(busy, None) if asked.method == "GET" and DIGEST in asked.path else None

    with scripted(respond) as server:
        await pull(tmp_path, server)


async def test_a_proxy_of_the_environment_is_used_unless_it_is_excepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted() as proxy, scripted() as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.host}")
        monkeypatch.setenv("NO_PROXY", "other.example")
        await pull(tmp_path / "a", server)
        assert server.asked == []
        assert all(asked.path.startswith(f"http://{server.host}/v2/") for asked in proxy.asked)
        seen = len(proxy.asked)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        await pull(tmp_path / "b", server)
        assert server.asked
        assert len(proxy.asked) == seen


@asynccontextmanager
async def another_host(store: Store, listen: str) -> AsyncIterator[str]:
    """A host that serves a store, as other hosts see it."""
    server = bind_server(
        listen,
        register=lambda to: store_pb2_grpc.add_ModelStoreServicer_to_server(
            ModelStoreServicer(store, store.jobs.pull), to
        ),
        services=[],
    )
    await server.server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def test_another_hosts_manifest_stands_in_only_for_a_registry_that_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: dict[int, type[Exception]] = {
        400: InvalidRequest, 401: RegistryFailed, 403: RegistryFailed, 404: ModelNotFound, 429: RegistryFailed,
        500: RegistryFailed, 503: RegistryFailed,
    }  # fmt: skip
    with scripted() as server:
        name, allowed = f"{server.host}/team/model:latest", f"http://{server.host}"
        async with (
            open_store(tmp_path / "there", allowed) as there,
            open_store(tmp_path / "here", allowed) as here,
        ):
            await there.pull(name)
            async with another_host(there, f"unix:{tmp_path}/peer") as peer:
                for status, error in statuses.items():
                    server.respond = lambda _, status=status: (status, {}, b'{"error": "said"}')  # type: ignore[misc]
                    with pytest.raises(error, match="said"):
                        await here.pull(name, sources=[peer])
                    assert here.manifests.names() == []
                with speaking_tls(server, tmp_path, monkeypatch), pytest.raises(RegistryFailed, match="certificate"):
                    await here.pull(name, insecure=False, sources=[peer])
                assert here.manifests.names() == []
                server.http.shutdown()
                server.http.server_close()
                lines = [line.status for line in await here.pull(name, sources=[peer])]
                assert any("is not reached" in line and f"manifest of the node at {peer}" in line for line in lines)
                assert lines[-1] == "success"
                assert here.blobs.path(DIGEST).read_bytes() == WEIGHTS
                with pytest.raises(RegistryFailed, match="is not reached"):
                    await here.pull(name)


async def test_a_manifest_of_another_host_over_tcp_needs_a_certificate_and_files_need_none(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "trust")
    with scripted() as server:
        name, allowed = f"{server.host}/team/model:latest", f"http://{server.host}"
        async with (
            open_store(tmp_path / "there", allowed) as there,
            open_store(tmp_path / "here", allowed) as here,
            open_store(tmp_path / "later", allowed) as later,
        ):
            assert list((await there.pull(name))[-1].peers) == []
            server.asked.clear()
            async with another_host(there, "127.0.0.1:0") as peer:
                # The manifest of the registry proves files of any node.
                assert list((await here.pull(name, sources=[peer]))[-1].peers) == [peer]
                assert not [asked for asked in server.asked if asked.method == "GET" and DIGEST in asked.path]
                server.http.shutdown()
                server.http.server_close()
                with pytest.raises(RegistryFailed, match=r"is not reached.*PUNA_TRUST is not set"):
                    await later.pull(name, sources=[peer])
                assert later.manifests.names() == []
            with acting_as(cluster.identity("node/a")):
                async with another_host(there, "127.0.0.1:0") as peer:
                    assert (await later.pull(name, sources=[peer]))[-1].status == "success"

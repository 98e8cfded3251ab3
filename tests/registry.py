"""A real registry (Debian's docker-registry) for tests, what is pushed to it, and a proxy before it that does harm."""

import asyncio
import contextlib
import hashlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from runner.core.store.manifest import CONFIG_TYPE, DOCKER_MANIFEST
from tests.ports import free_port
from tests.waiting import wait_until

BINARY = shutil.which("docker-registry")
needs_registry = pytest.mark.skipif(BINARY is None, reason="docker-registry is not installed (make deps-system)")
MODEL = "application/vnd.ollama.image.model"
PARAMETERS = "application/vnd.ollama.image.params"
# bcrypt of "open sesame", the only kind of line that the registry reads.
USER, PASSWORD = "reader", "open sesame"  # of a registry that lives for one test
HTPASSWD = "reader:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRegistry:
    """Registry under test, with its address "127.0.0.1:port"."""

    host: str
    auth: tuple[str, str] | None = None

    @property
    def url(self) -> str:
        """Of its root."""
        return f"http://{self.host}"


@contextlib.contextmanager
def running_registry(
    directory: Path,
    *,
    auth_lines: str = "",
    auth: tuple[str, str] | None = None,
    address: str = "127.0.0.1",
    inside: Sequence[str] = (),
) -> Iterator[RunningRegistry]:
    """A registry with its files below `directory`; `auth_lines` is the section "auth" of its configuration.

    `inside`: the words before its command that bring it into a network namespace.
    """
    assert BINARY is not None
    directory.mkdir(parents=True, exist_ok=True)
    host = f"{address}:{free_port()}"
    configuration = directory / "config.yml"
    configuration.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {directory / 'data'}}}}}\n"
        f"http: {{addr: {host}}}\n{auth_lines}"
    )
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen([*inside, BINARY, "serve", str(configuration)], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(host), deadline_s=60, what="the registry answers")
        yield RunningRegistry(host=host, auth=auth)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _answers(host: str) -> bool:
    try:
        return httpx.get(f"http://{host}/v2/", trust_env=False, timeout=60).status_code in (200, 401)
    except httpx.HTTPError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """A model in a registry."""

    name: str  # as it is pulled, host and all
    manifest: bytes
    weights: bytes

    @property
    def digest(self) -> str:
        """Of its weights."""
        return hashlib.sha256(self.weights).hexdigest()


def push(
    registry: RunningRegistry, repository: str, weights: bytes, *, headers: dict[str, str] | None = None
) -> Pushed:
    """Put a model with some parameters there, tag "latest"."""
    with httpx.Client(
        base_url=registry.url, auth=registry.auth, headers=headers, trust_env=False, timeout=60
    ) as client:
        config = json.dumps({"model_format": "gguf", "model_family": "llama"}).encode()
        layers = [(MODEL, weights), (PARAMETERS, b'{"temperature": 0.5}')]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER_MANIFEST,
                "config": _put_blob(client, repository, CONFIG_TYPE, config),
                "layers": [_put_blob(client, repository, kind, content) for kind, content in layers],
            }
        ).encode()
        answer = client.put(
            f"/v2/{repository}/manifests/latest", content=manifest, headers={"Content-Type": DOCKER_MANIFEST}
        )
        assert answer.status_code == 201, answer.text
    return Pushed(name=f"{registry.host}/{repository}:latest", manifest=manifest, weights=weights)


def _put_blob(client: httpx.Client, repository: str, media_type: str, content: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    begun = client.post(f"/v2/{repository}/blobs/uploads/")
    assert begun.status_code == 202, begun.text
    location = httpx.URL(begun.headers["location"]).copy_add_param("digest", digest)
    done = client.put(location, content=content, headers={"Content-Type": "application/octet-stream"})
    assert done.status_code == 201, done.text
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


@dataclass(slots=True)
class HarmfulProxy:
    """Stands before a registry. What it does to the content of blobs that are longer than `spares_bytes`."""

    upstream: str
    address: str = ""
    spares_bytes: int = 4096
    drops_ranges: bool = False  # the registry is asked for the whole blob
    cuts_after: int = 0  # bytes of content, then the connection is cut; 0: never
    cuts_left: int = 1_000_000  # so often
    flips_byte: int = -1  # of each answer
    holds_after: int = 0  # bytes of content of all answers together, then nothing comes until `released`
    stalls_left: int = 0  # answers that stop after their first bytes, for ever
    released: asyncio.Event = field(default_factory=asyncio.Event)
    sent_bytes: int = 0  # of blobs
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    authorizations: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request; every answer closes the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            method, path, _ = lines[0].split(" ")
            headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
            names = {name.lower(): value for name, value in headers.items()}
            self.requests.append((method, path, names.get("range", "")))
            self.authorizations.append(names.get("authorization", ""))
            dropped = {"connection", "range"} if self.drops_ranges else {"connection"}
            kept = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in dropped]
            request = "\r\n".join([lines[0], *kept, "Connection: close", "", ""])
            host, _, port = self.upstream.partition(":")
            up_reader, up_writer = await asyncio.open_connection(host, int(port))
            try:
                up_writer.write(request.encode("latin-1"))
                await up_writer.drain()
                await self._answer(method, path, up_reader, writer)
            finally:
                up_writer.close()
        writer.close()

    async def _answer(self, method: str, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if self.drops_ranges:
            head = re.sub(r"(?i)accept-ranges:[^\r]*\r\n", "", head)
        writer.write(head.encode("latin-1"))
        length = re.search(r"(?i)content-length: (\d+)", head)
        is_blob = method == "GET" and "/blobs/" in path and length is not None and int(length[1]) > self.spares_bytes
        sent = 0
        while data := await reader.read(16 * 1024):
            if is_blob:
                data = await self._harm(data, sent, writer)
            writer.write(data)
            await writer.drain()
            sent += len(data)
            if is_blob:
                self.sent_bytes += len(data)
                if self.stalls_left > 0:
                    self.stalls_left -= 1
                    await asyncio.Event().wait()
                if self.cuts_after and self.cuts_left and sent >= self.cuts_after:
                    self.cuts_left -= 1
                    writer.transport.abort()
                    return

    async def _harm(self, data: bytes, sent: int, writer: asyncio.StreamWriter) -> bytes:
        if self.cuts_after and self.cuts_left:
            data = data[: max(1, self.cuts_after - sent)]
        if sent <= self.flips_byte < sent + len(data):
            changed = bytearray(data)
            changed[self.flips_byte - sent] ^= 1
            data = bytes(changed)
        if self.holds_after and self.sent_bytes >= self.holds_after:
            await self.released.wait()
        return data


@contextlib.asynccontextmanager
async def harmful_proxy(upstream: str) -> AsyncIterator[HarmfulProxy]:
    """A proxy before `upstream`, "host:port"; harmless until it is told otherwise."""
    proxy = HarmfulProxy(upstream)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end of the test; streams cannot be told so
                await proxy.serve(reader, writer)
        finally:
            writer.transport.abort()
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

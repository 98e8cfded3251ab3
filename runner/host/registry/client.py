"""Speaks to one registry over HTTP: proves itself where asked, follows where it may, never takes a secret elsewhere."""

import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import httpx
import orjson

from common.errors import (
    DigestMismatch,
    InvalidRequest,
    ModelNotFound,
    RegistryFailed,
)
from runner.core.registry.addresses import (
    MANIFEST_TYPES,
    REDIRECTS_MAX,
    Reach,
    authority,
    blob_path,
    manifest_path,
    pull_scope,
    redirected,
)
from runner.core.registry.allowed import HUB_HOSTS, AllowedRegistry
from runner.core.registry.challenges import parse_challenges, token_url
from runner.core.registry.credentials import Credentials
from runner.core.store.digests import qualified
from runner.core.store.manifest import MANIFEST_BYTES_MAX
from runner.core.store.names import StoreName
from runner.host.registry.transport import REACH

TOKEN_BYTES_MAX = 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
ERROR_TEXT_MAX = 1000


class RegistryNotReached(RegistryFailed):
    """No connection, or no answer in time: the registry has neither shown nor refused anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Credentials, and the hosts that may see them. Never part of a request, a log or an error."""

    by_host: Mapping[str, Credentials] = field(default_factory=dict)
    hub_token: str = field(default="", repr=False)  # HF_TOKEN


class RegistryClient:
    """One name at one registry. The proxy settings of the environment count, and its certificates."""

    def __init__(
        self, http: httpx.AsyncClient, registry: AllowedRegistry, name: StoreName, secrets: Secrets, *, insecure: bool
    ) -> None:
        """`insecure`: without TLS.

        Raises:
            PermissionDenied: that registry may be asked over TLS only.
        """
        self._http = http
        self._registry = registry
        self._name = name
        self._secrets = secrets
        self._insecure = insecure
        self._base_url = registry.base_url(insecure=insecure)
        self._authorization = f"Bearer {secrets.hub_token}" if registry.is_hub and secrets.hub_token else ""

    @property
    def host(self) -> str:
        """Of the registry, for people."""
        return self._registry.host

    async def manifest(self) -> bytes:
        """Return the manifest of the name.

        Raises:
            ModelNotFound: the registry has no such model.
            InvalidRequest: it refuses the request; its own text says why.
            DigestMismatch: the bytes are not those that it announces.
            RegistryNotReached: no answer, which says nothing about the model.
            RegistryFailed: an answer that is none, or a refusal.
        """
        url = self._base_url + manifest_path(self._name)
        async with self.open("GET", url, {"Accept": ", ".join(MANIFEST_TYPES)}) as answer:
            if answer.status_code != 200:
                raise await self.failure(answer, f"manifest of {self._name.short()}")
            content = await self._read(answer, MANIFEST_BYTES_MAX)
            announced = answer.headers.get("docker-content-digest", "")
        if announced.startswith("sha256:"):
            found = qualified(hashlib.sha256(content).hexdigest())
            if found != announced:
                raise DigestMismatch(f"digest mismatch of the manifest, expected {announced!r}, got {found!r}")
        return content

    async def blob_size(self, digest: str) -> int | None:
        """Bytes of a blob; None: the registry does not say.

        Raises:
            ModelNotFound, InvalidRequest, RegistryFailed: see `manifest`.
        """
        async with self.open("HEAD", self._base_url + blob_path(self._name, digest), {}) as answer:
            if answer.status_code != 200:
                raise await self.failure(answer, f"blob {digest[:12]}")
            length = answer.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    def open_blob(self, digest: str, headers: Mapping[str, str]) -> AbstractAsyncContextManager[httpx.Response]:
        """Open an answer with the content of a blob, whatever its status; it is not read yet."""
        return self.open("GET", self._base_url + blob_path(self._name, digest), headers)

    @contextlib.asynccontextmanager
    async def open(self, method: str, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Open the answer after redirects and, where it is asked for, a proof. Its content is not read.

        Raises:
            RegistryFailed: not reached, too many redirects, or one that may not be followed.
        """
        proved = False
        hops = 0
        reach: Reach | None = None  # of the last sender of a redirect away from the registry
        while True:
            answer = await self._send(method, url, headers, reach)
            try:
                if answer.status_code == 401 and not proved and authority(url) == authority(self._base_url):
                    proved = await self._prove(answer)
                    if proved:
                        continue
                if answer.is_redirect and "location" in answer.headers:
                    hops += 1
                    if hops > REDIRECTS_MAX:
                        raise RegistryFailed(f"{self.host} redirects more than {REDIRECTS_MAX} times")
                    reach = answer.extensions[REACH]
                    url = redirected(url, answer.headers["location"], plain=self._insecure, allowed=reach)
                    if authority(url) == authority(self._base_url):
                        reach = None  # named by the operator
                    continue
                with _transport_errors(self.host):
                    yield answer
                return
            finally:
                await answer.aclose()

    async def _send(self, method: str, url: str, headers: Mapping[str, str], reach: Reach | None) -> httpx.Response:
        # Compressed content would have other bytes than the digest.
        sent = {"Accept-Encoding": "identity", **headers}
        if self._authorization and self._may_see(url):
            sent["Authorization"] = self._authorization
        tries_tls = self._registry.plain_allowed and not self._insecure
        hint = "; one that speaks no TLS is pulled from with insecure" if tries_tls else ""
        with _transport_errors(self.host, hint, is_first=authority(url) == authority(self._base_url)):
            request = self._http.build_request(method, url, headers=sent, extensions={REACH: reach})
            return await self._http.send(request, stream=True)

    def _may_see(self, url: str) -> bool:
        """Return True if the authorization is for the requested host: never for the target of a redirect."""
        asked = authority(url)
        return asked == authority(self._base_url) or (self._registry.is_hub and asked in HUB_HOSTS)

    async def _prove(self, answer: httpx.Response) -> bool:
        """Get what the challenge asks for; False: there is nothing to show.

        Raises:
            RegistryFailed: the token's server is not the registry's own, or gives none.
        """
        credentials = self._secrets.by_host.get(self.host)
        for challenge in parse_challenges(answer.headers.get_list("www-authenticate")):
            if challenge.scheme == "bearer":
                url = token_url(challenge, self._registry, scope=pull_scope(self._name), plain=self._insecure)
                self._authorization = f"Bearer {await self._token(url, credentials)}"
                return True
            if challenge.scheme == "basic" and credentials is not None:
                self._authorization = credentials.basic()
                return True
        return False

    async def _token(self, url: str, credentials: Credentials | None) -> str:
        headers = {}
        if credentials is not None:
            headers["Authorization"] = credentials.basic()
        elif self._registry.is_hub and self._secrets.hub_token:
            headers["Authorization"] = f"Bearer {self._secrets.hub_token}"
        with _transport_errors(self.host):
            answer = await self._http.send(self._http.build_request("GET", url, headers=headers), stream=True)
        try:
            if answer.status_code != 200:
                raise RegistryFailed(f"{self.host} gives no token: status {answer.status_code}")
            with _transport_errors(self.host):
                content = await self._read(answer, TOKEN_BYTES_MAX)
        finally:
            await answer.aclose()
        try:
            found = orjson.loads(content)
            token = found.get("token") or found.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise RegistryFailed(f"{self.host} gives a token that is none")
        return token

    async def _read(self, answer: httpx.Response, bytes_max: int) -> bytes:
        content = bytearray()
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) > bytes_max:
                raise RegistryFailed(f"{self.host} answers with more than {bytes_max} bytes")
        return bytes(content)

    async def failure(self, answer: httpx.Response, what: str) -> Exception:
        """Return the error that a status means; the text of a registry is passed on, made printable."""
        text = ""
        with contextlib.suppress(RegistryFailed, httpx.HTTPError):
            text = error_text(await self._read(answer, ERROR_BYTES_MAX))
        status, said = answer.status_code, f": {text}" if text else ""
        if status == 404:
            return ModelNotFound(f"{self.host} has no {what}{said}")
        if status == 400:
            return InvalidRequest(text or f"{self.host} refuses the {what}", param="model")
        if status in (401, 403):
            return RegistryFailed(f"{self.host} does not show the {what} (status {status}){said}")
        return RegistryFailed(f"{self.host} answers with status {status} for the {what}{said}")


def error_text(content: bytes) -> str:
    """Return a registry's error text, in the forms in use: one text, or a list of messages."""
    try:
        read = orjson.loads(content)
    except ValueError:
        read = content.decode(errors="replace")
    if isinstance(read, dict):
        errors = read.get("errors")
        if isinstance(errors, list):
            read = "; ".join(str(one.get("message", "")) for one in errors if isinstance(one, dict))
        else:
            read = read.get("error") or read.get("message") or ""
    printable = "".join(letter if letter.isprintable() else " " for letter in str(read))
    return " ".join(printable.split())[:ERROR_TEXT_MAX]


@contextlib.contextmanager
def _transport_errors(host: str, hint: str = "", *, is_first: bool = False) -> Iterator[None]:
    """Errors of the connection as one of ours. `is_first`: the registry has not answered yet."""
    try:
        yield
    except (httpx.ConnectError, httpx.TimeoutException) as error:
        kind = RegistryNotReached if is_first and not _is_of_tls(error) else RegistryFailed
        raise kind(f"{host} is not reached: {str(error) or type(error).__name__}{hint}") from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise RegistryFailed(f"the connection to {host} failed: {str(error) or type(error).__name__}{hint}") from error


def _is_of_tls(error: BaseException | None) -> bool:
    """Return True if something answered that could not prove to be the registry."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__context__
    return error is not None

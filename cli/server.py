"""The gateway as the commands see it: Ollama's dialect and Puna's own pages over HTTP."""

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx

from cli.access import api_key_of, trust_of
from cli.cluster.home import is_locked, read_record, real_home
from cli.core.cluster_view import event_objects
from cli.core.server_address import DEFAULT_PORT, connect_url, is_loopback_url
from cli.errors import CommandFailed, ExitCode, code_of_reason, code_of_status
from cli.settings import CliSettings

_CONNECT_WITHIN_S = 5.0
# A gateway sends something every 10 s once a stream has begun.
_SILENCE_S = 30.0
_ALIVE_WITHIN_S = 5.0  # an answer of a gateway's event loop alone, also of a busy one
_ANSWER_WITHIN_S = 30.0


def server_url(settings: CliSettings) -> str:
    """PUNA_HOST if set, else the cluster that runs in this home, else the default port of this machine.

    Raises:
        CommandFailed: PUNA_HOST is no address.
    """
    try:
        if settings.host:
            url = connect_url(settings.host)
            # Where this environment is a gateway's own (`docker compose exec`), PUNA_HOST is what it listens on.
            here = settings.tls_cert is not None and is_loopback_url(url)
            return connect_url(settings.host, tls=here)
    except ValueError as error:
        raise CommandFailed(f"PUNA_HOST: {error}", ExitCode.USAGE) from error
    home = real_home(Path(settings.home))
    record = read_record(home)
    if record is not None and record.http_address and is_locked(home):  # a machine that joined has no gateway
        return record.http_url
    return connect_url(f":{DEFAULT_PORT}")


class Server:
    """One gateway. Every method raises CommandFailed with one line when it does not answer as asked."""

    def __init__(self, url: str, api_key: str | None = None, *, served_with: Path | None = None) -> None:
        """Nothing is sent yet. `served_with`: see `trust_of`.

        Raises:
            CommandFailed: the file of certificates that counts has none.
        """
        self.url = url
        # A proxy of the environment cannot reach this machine's loopback.
        self.http_options: dict[str, Any] = {
            "base_url": url,
            "headers": {"authorization": f"Bearer {api_key}"} if api_key else None,
            "trust_env": not is_loopback_url(url),
            "verify": trust_of(url, served_with=served_with),
        }
        self._client = httpx.Client(**self.http_options, timeout=_timeout(_ANSWER_WITHIN_S))

    @classmethod
    def of(cls, settings: CliSettings | None = None) -> "Server":
        """Return the gateway of the settings, with their key. None: the settings of the environment.

        Raises:
            CommandFailed: PUNA_HOST is no address, or the key or the certificates cannot be read.
        """
        settings = settings or CliSettings.load()
        url = server_url(settings)
        # With https:// the user asks for a name that the authorities have certified.
        means_here = is_loopback_url(url) and "://" not in (settings.host or "")
        return cls(url, api_key_of(settings), served_with=settings.tls_cert if means_here else None)

    def get(self, path: str, *, answer_within_s: float = _ANSWER_WITHIN_S) -> dict[str, Any]:
        """Return the JSON object at a path."""
        return _object(self.ask("GET", path, answer_within_s=answer_within_s).text)

    def send(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, answer_within_s: float = _ANSWER_WITHIN_S
    ) -> dict[str, Any]:
        """Send a command; return the JSON object of the answer."""
        return _object(self.ask(method, path, body, answer_within_s=answer_within_s).text)

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, answer_within_s: float = _ANSWER_WITHIN_S
    ) -> httpx.Response:
        """Send a request; return a successful answer, read completely."""
        response = self.answer(method, path, answer_within_s=answer_within_s, json=body)
        if not response.is_success:
            raise refusal(response)
        return response

    def answer(
        self, method: str, path: str, *, answer_within_s: float | None = _ANSWER_WITHIN_S, **more: Any
    ) -> httpx.Response:
        """Send a request; return any answer, also one that is no success."""
        self.check_alive(answer_within_s)
        try:
            return self._client.request(method, path, timeout=_timeout(answer_within_s), **more)
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error

    def check_alive(self, answer_within_s: float | None) -> None:
        """Ask for any answer before a call that may last: a gateway that is stopped still accepts connections.

        Raises:
            CommandFailed: there is no gateway, or it does not answer.
        """
        if answer_within_s is not None and answer_within_s <= _ALIVE_WITHIN_S:
            return
        try:
            self._client.get("/healthz", timeout=_timeout(_ALIVE_WITHIN_S))
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error

    def has_blob(self, digest: str) -> bool:
        """Return True if the server has the blob."""
        response = self.answer("HEAD", f"/api/blobs/{digest}")
        if response.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            raise refusal(response)
        return response.is_success

    def put_blob(self, digest: str, content: Iterator[bytes], size_bytes: int) -> None:
        """Send a file, however long that takes."""
        headers = {"content-length": str(size_bytes), "content-type": "application/octet-stream"}
        path = f"/api/blobs/{digest}"
        response = self.answer("POST", path, answer_within_s=None, content=content, headers=headers)
        if not response.is_success:
            raise refusal(response)

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the JSON objects of a streamed answer as they arrive. The first may take as long as a load."""
        for line in self._lines("POST", path, body, None):
            if line.strip():
                yield _without_error(_object(line))

    def events(self, path: str, *, silence_s: float) -> Generator[tuple[str, dict[str, Any]]]:
        """Name and object of each server-sent event, until the server ends; fails after so long without a byte."""
        for name, text in event_objects(self._lines("GET", path, None, silence_s)):
            yield name, _object(text)

    def _lines(self, method: str, path: str, body: dict[str, Any] | None, silence_s: float | None) -> Generator[str]:
        self.check_alive(silence_s)
        try:
            with self._client.stream(method, path, json=body, timeout=_timeout(silence_s)) as response:
                if not response.is_success:
                    response.read()
                    raise refusal(response)
                if silence_s is None:
                    # The body is read with the timeout that the request has now.
                    response.request.extensions["timeout"]["read"] = _SILENCE_S
                yield from response.iter_lines()
        except httpx.HTTPError as error:
            raise unreachable(self.url, error) from error


def unreachable(url: str, error: httpx.HTTPError) -> CommandFailed:
    """Return the error for a server that did not answer, in one line with advice."""
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        _, _, reason = text.partition("verify failed: ")
        advice = "name its authority with --cacert or SSL_CERT_FILE"
        text = f"the certificate of {url} is not trusted ({reason.partition(' (_ssl')[0] or text}); {advice}"
    elif isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        text = f"nothing answers at {url}; start it with `puna up`, or set PUNA_HOST"
    elif isinstance(error, httpx.TimeoutException):
        text = f"{url} accepts connections, but does not answer in time; look at the gateway's log, or restart it"
    else:
        text = f"{url} broke off: {text}"
    return CommandFailed(text, ExitCode.UNREACHABLE)


def refusal(response: httpx.Response) -> CommandFailed:
    """Return the error for an answer that is no success."""
    try:
        text = _message(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = f"{response.url} answered {response.status_code}"
    if response.status_code == httpx.codes.UNAUTHORIZED:
        text += "; PUNA_API_KEY must be a key"
    return CommandFailed(text, code_of_status(response.status_code))


def _timeout(answer_within_s: float | None) -> httpx.Timeout:
    connect_s = _CONNECT_WITHIN_S if answer_within_s is None else min(_CONNECT_WITHIN_S, answer_within_s)
    return httpx.Timeout(answer_within_s, connect=connect_s)


def _object(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CommandFailed("the server's answer is not JSON; is it Puna?")
    return answer


def _without_error(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the object; raise if it is the error of a broken stream."""
    if "error" in answer:
        error = answer["error"]
        code = code_of_reason(str(error.get("code"))) if isinstance(error, dict) else ExitCode.FAILED
        raise CommandFailed(_message(error), code)
    return answer


def _message(error: object) -> str:
    """Ollama's dialect sends a text, OpenAI's an object with a message."""
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())

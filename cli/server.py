"""The gateway as the commands see it: Ollama's dialect and Puna's own pages over HTTP."""

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx

from cli.cluster.home import real_home
from cli.cluster.lock import is_locked
from cli.cluster.state_file import read_record
from cli.core.server_address import DEFAULT_PORT, connect_url, is_loopback_url
from cli.errors import CommandFailed
from cli.settings import CliSettings

_CONNECT_WITHIN_S = 5.0
_ANSWER_WITHIN_S = 30.0


def server_url(settings: CliSettings) -> str:
    """PUNA_HOST if set, else the cluster that runs in this home, else the default port of this machine.

    Raises:
        CommandFailed: PUNA_HOST is no address.
    """
    try:
        if settings.host:
            return connect_url(settings.host)
    except ValueError as error:
        raise CommandFailed(f"PUNA_HOST: {error}") from error
    home = real_home(Path(settings.home))
    record = read_record(home)
    if record is not None and is_locked(home):
        return connect_url(record.http_address)
    return connect_url(f":{DEFAULT_PORT}")


class Server:
    """One gateway. Every method raises CommandFailed with one line when it does not answer as asked."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Nothing is sent yet."""
        self.url = url
        # A proxy of the environment cannot reach this machine's loopback.
        self._client = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {api_key}"} if api_key else None,
            trust_env=not is_loopback_url(url),
            timeout=httpx.Timeout(_ANSWER_WITHIN_S, connect=_CONNECT_WITHIN_S),
        )

    @classmethod
    def of(cls, settings: CliSettings) -> "Server":
        """The gateway that the settings mean, with their key.

        Raises:
            CommandFailed: PUNA_HOST is no address.
        """
        return cls(server_url(settings), settings.api_key)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path."""
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise CommandFailed(_error_text(response))
        return _object(response.text)

    def send(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, answer_within_s: float = _ANSWER_WITHIN_S
    ) -> dict[str, Any]:
        """The JSON object that is answered to a command."""
        timeout = httpx.Timeout(answer_within_s, connect=_CONNECT_WITHIN_S)
        try:
            response = self._client.request(method, path, json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise CommandFailed(_error_text(response))
        return _object(response.text)

    def order(self, method: str, path: str, body: dict[str, Any]) -> None:
        """A command that is answered with its status alone."""
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise CommandFailed(_error_text(response))

    def has_blob(self, digest: str) -> bool:
        """Whether the server has a file."""
        try:
            response = self._client.head(f"/api/blobs/{digest}")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            raise CommandFailed(_error_text(response))
        return response.is_success

    def put_blob(self, digest: str, content: Iterator[bytes], size_bytes: int) -> None:
        """Send a file, however long that takes."""
        timeout = httpx.Timeout(None, connect=_CONNECT_WITHIN_S)
        headers = {"content-length": str(size_bytes), "content-type": "application/octet-stream"}
        try:
            response = self._client.post(f"/api/blobs/{digest}", content=content, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise CommandFailed(_error_text(response))

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """The JSON objects of a streamed answer, as they come. The first may take as long as a model takes to load."""
        timeout = httpx.Timeout(None, connect=_CONNECT_WITHIN_S)
        try:
            with self._client.stream("POST", path, json=body, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise CommandFailed(_error_text(response))
                for line in response.iter_lines():
                    if line:
                        yield _without_error(_object(line))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError) -> CommandFailed:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return CommandFailed(f"nothing answers at {self.url}; start it with `puna up`, or set PUNA_HOST")
        return CommandFailed(f"{self.url} broke off: {error or type(error).__name__}")


def _object(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CommandFailed("the server's answer is not JSON; is it Puna?")
    return answer


def _without_error(answer: dict[str, Any]) -> dict[str, Any]:
    """An error in the middle of a stream comes as a line of its own."""
    if "error" in answer:
        raise CommandFailed(_message(answer["error"]))
    return answer


def _error_text(response: httpx.Response) -> str:
    try:
        text = _message(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        text = f"{response.url} answered {response.status_code}"
    return f"{text}; PUNA_API_KEY must be a key" if response.status_code == httpx.codes.UNAUTHORIZED else text


def _message(error: object) -> str:
    """Ollama's dialect sends a text, OpenAI's an object with a message."""
    text = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(text).split())

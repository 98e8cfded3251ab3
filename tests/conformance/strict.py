"""What the strict cluster's engine is told to do, and how its places are filled."""

import contextlib
import http.client
import itertools
import threading
import urllib.error
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.conformance.table import Talk
from tests.waiting import wait_until

POISON = 666  # a request with this seed kills its runner
TOKENS_PER_S = 20
DEADLINE_S = 10
_CROWD = 4


@contextlib.contextmanager
def crowd(talk: Talk) -> Iterator[None]:
    """While it is open, as many requests run and wait as there is room for."""
    connections = [http.client.HTTPConnection(urlsplit(talk.url).netloc, timeout=30) for _ in range(_CROWD)]
    threads = [threading.Thread(target=_ask, args=(talk, connection), daemon=True) for connection in connections]
    try:
        for thread in threads:
            thread.start()

        def is_full() -> bool:
            return any(model["depth"] for model in talk.get("/puna/v1/queue")["models"])

        wait_until(is_full, deadline_s=20, what="a request waits")
        yield
    finally:
        for connection in connections:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(2)
        for thread in threads:
            thread.join(10)


def break_model(talk: Talk, model: str) -> None:
    """Kill the runners of a model until no device takes it for a while."""
    numbers = itertools.count()

    def is_broken() -> bool:
        body = {"model": model, "prompt": f"kill {next(numbers)}", "raw": True, "stream": False}
        try:
            talk.post("/api/generate", body | {"options": {"seed": POISON, "num_predict": 1}})
        except urllib.error.HTTPError as error:
            return error.code == 503
        return False

    wait_until(is_broken, deadline_s=60, what="no device takes the model")


def _ask(talk: Talk, connection: http.client.HTTPConnection) -> None:
    body = '{"model": "demo", "prompt": "x", "raw": true, "options": {"num_predict": 400}}'
    headers = {"authorization": f"Bearer {talk.facts['key']}"}
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
        connection.request("POST", "/api/generate", body, headers)
        connection.getresponse().read()

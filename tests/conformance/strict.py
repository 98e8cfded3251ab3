"""Settings of the engines of the strict and the hurried cluster, and ways to occupy their slots."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.conformance.table import Talk
from tests.waiting import wait_until

COLD = "cold"  # a model that no case loads
POISON = 666  # a request with this seed kills its runner
TOKENS_PER_S = 20
DEADLINE_S = 120  # loads and deaths of several runners fit into it on a busy machine too
HURRIED_DEADLINE_S = 5  # a quarter of what an answer of `LONG` tokens takes
LONG = 400


@contextlib.contextmanager
def crowd(talk: Talk) -> Iterator[None]:
    """While it is open, one request holds the slot, another waits, and there is room for no third."""
    holder, waiter = (http.client.HTTPConnection(urlsplit(talk.url).netloc, timeout=60) for _ in range(2))
    thread = threading.Thread(target=_wait, args=(talk, waiter), daemon=True)
    try:
        _ask(talk, holder).readline()  # its first token: the slot is its own until it leaves
        thread.start()
        wait_until(lambda: is_full(talk), deadline_s=20, what="a request waits")
        yield
    finally:  # the next case shall find the places free
        for connection in (holder, waiter):
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(2)
        if thread.ident is not None:
            thread.join(10)
        wait_until(lambda: not is_full(talk), deadline_s=20, what="nobody waits any more")


def is_full(talk: Talk) -> bool:
    """Return True if a request waits for a slot."""
    return any(model["depth"] for model in talk.get("/puna/v1/queue")["models"])


@contextlib.contextmanager
def drained(talk: Talk) -> Iterator[None]:
    """Keep the only node from taking new replicas: a model that is not loaded cannot be served meanwhile."""
    (node,) = talk.get("/puna/v1/nodes")["nodes"]
    talk.post(f"/puna/v1/nodes/{node['id']}/drain", {})
    try:
        yield
    finally:
        talk.post(f"/puna/v1/nodes/{node['id']}/undrain", {})
        talk.post(
            "/api/generate",
            {"model": "demo", "prompt": "x", "raw": True, "options": {"num_predict": 1}, "stream": False},
        )


def _ask(talk: Talk, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    body = json.dumps({"model": "demo", "prompt": "x", "raw": True, "options": {"num_predict": LONG}})
    connection.request("POST", "/api/generate", body, {"authorization": f"Bearer {talk.facts['key']}"})
    return connection.getresponse()


def _wait(talk: Talk, connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
        _ask(talk, connection).read()

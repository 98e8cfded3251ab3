"""llama-server as a proxy: its router hands each request to a llama-server of its own that has the model.

Router and model's server speak HTTP, and behind them is a real engine, with the demo model. So the rate is low, and
what counts is the difference between asking through the router and asking the model's server itself.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from bench.gateway.clients import HttpClient
from bench.machine import ROOT
from bench.servers import wait_until
from cli.cluster.plan import FreePort

_MODELS = ROOT / "models"
_MODEL = "demo"
_QUESTION = {"model": _MODEL, "messages": [{"role": "user", "content": "Tell me a story."}]}


@dataclass(slots=True)
class LlamaClient(HttpClient):
    """Asks for a number of tokens as llama-server wants it; `rate` has no meaning to a real engine."""

    mark: bytes = b'"content":"'

    def body(self, tokens: int, rate: int) -> bytes:  # noqa: ARG002  # the base class's signature
        """See HttpClient."""
        return orjson.dumps(_QUESTION | {"stream": True, "max_tokens": tokens, "ignore_eos": True})


@contextmanager
def running_router(server: Path, *, core: int, other_core: int) -> Iterator[tuple[str, str, int]]:
    """Addresses of the router and of the model's server behind it, and the router's process."""
    port = FreePort().address().rpartition(":")[2]
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="puna-bench-") as directory:
        log = (Path(directory) / "log").open("wb")
        router = subprocess.Popen(
            ["taskset", "-c", str(core), server, "--models-dir", _MODELS, "--host", "127.0.0.1", "--port", port],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            wait_until(lambda: _answers(f"http://{address}"), what="the router's model")
            child = _child_of(router.pid)
            # It was started on the router's core; only the proxy is to be measured there.
            for thread in Path(f"/proc/{child}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {other_core})
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            yield address, f"127.0.0.1:{words[words.index('--port') + 1]}", router.pid
        finally:
            router.terminate()
            router.wait()
            log.close()


def _child_of(pid: int) -> int:
    """Return the pid of the only child process of any thread."""
    found = [one for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]
    return int(found[0])


def _answers(url: str) -> bool:
    body = _QUESTION | {"max_tokens": 1}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False, timeout=30)
    return answer.status_code == httpx.codes.OK

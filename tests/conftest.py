"""Settings that all tests share.

Property tests try the same cases on every machine, however busy it is; others: `pytest --hypothesis-profile searching`.
A process that is given no home of its own has none: what one test leaves in a shared home changes the next one.
Ctrl-C is heard, also in a run that a script started in the background.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from ssl import SSLContext
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("searching"), derandomize=True)
settings.load_profile("steady")

# No directory can be made there, not even by root, so that a start which would write to ~/.puna fails.
os.environ["PUNA_HOME"] = "/dev/null/a-test-gives-each-process-a-home"

# A shell without job control has what it starts in the background ignore Ctrl-C, and all that starts from there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# openai brings a client of its own.
HTTP_CLIENTS = ("httpx", "httpx2")


def _shared(make: Callable[..., SSLContext]) -> Callable[..., SSLContext]:
    """Return a function that makes one context for all clients of the process that verify with the same authorities.

    `make` reads 150 authorities for each client, in 30 ms of processor time, and each `httpx.get` makes a client: a
    wait for an answer over HTTP would take most of a core from what it waits for.
    """
    made: dict[tuple[Any, ...], SSLContext] = {}

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
        if verify is not True or cert is not None:
            return make(verify, cert, trust_env)
        authorities = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if authorities not in made:
            made[authorities] = make(verify, cert, trust_env)
        return made[authorities]

    return create


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in HTTP_CLIENTS:
            transports = import_module(f"{name}._transports.default")
            patch.setattr(transports, "create_ssl_context", _shared(transports.create_ssl_context))
        yield


def pytest_unconfigure() -> None:
    """Close what llama-cpp-python opens when it is imported, and leaves to an interpreter that complains of it."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        file = getattr(opened, name, None)
        if file is not None:
            file.close()

"""Settings that all tests share.

Property tests try the same cases on every machine, however busy it is; others: `pytest --hypothesis-profile searching`.
A process that is given no home of its own has none: what one test leaves in a shared home changes the next one.
"""

import os
import sys
from collections.abc import Iterator
from functools import cache
from ssl import SSLContext
from typing import Any

import pytest
from httpx import create_ssl_context
from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("searching"), derandomize=True)
settings.load_profile("steady")

# No directory can be made there, not even by root, so that a start which would write to ~/.puna fails.
os.environ["PUNA_HOME"] = "/dev/null/a-test-gives-each-process-a-home"

_verifying = cache(create_ssl_context)


def _ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> SSLContext:
    """Return one context for all clients of the process that verify with the same authorities.

    httpx reads 150 authorities for each client, in 30 ms of processor time, and each `httpx.get` makes a client: a wait
    for an answer over HTTP would take most of a core from what it waits for.
    """
    if verify is True and cert is None and not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & os.environ.keys():
        return _verifying()
    return create_ssl_context(verify, cert, trust_env)


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", _ssl_context)
        yield


def pytest_unconfigure() -> None:
    """Close what llama-cpp-python opens when it is imported, and leaves to an interpreter that complains of it."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        file = getattr(opened, name, None)
        if file is not None:
            file.close()

"""Settings that all tests share: property tests try the same cases on every machine, however busy it is.

Other cases: `pytest --hypothesis-profile searching`.
"""

import sys

from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine than of the code.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("searching"), derandomize=True)
settings.load_profile("steady")


def pytest_unconfigure() -> None:
    """Close what llama-cpp-python opens when it is imported, and leaves to an interpreter that complains of it."""
    opened = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        file = getattr(opened, name, None)
        if file is not None:
            file.close()

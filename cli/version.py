"""Which Puna this is."""

from importlib.metadata import PackageNotFoundError, version


def puna_version() -> str:
    """Of the installed package; a bare checkout has none."""
    try:
        return version("puna")
    except PackageNotFoundError:
        return "unknown"


def engine_version() -> str | None:
    """Of the binding to llama.cpp that is installed beside this command; None: none is."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return None

"""Which Puna this is."""

from importlib.metadata import PackageNotFoundError, version


def puna_version() -> str:
    """Of the installed package; a bare checkout has none."""
    try:
        return version("puna")
    except PackageNotFoundError:
        return "unknown"

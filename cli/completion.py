"""Shell completions: names that the server knows, or nothing. Completion never fails, and never takes long."""

from urllib.parse import quote

from cli.errors import CommandFailed
from common.startup_error import StartupError

# The shell blocks until this returns.
ANSWER_WITHIN_S = 1.0


def complete_model(incomplete: str) -> list[str]:
    """Complete models that can be used. The tag that is meant when none is written is left out."""
    return _beginning(incomplete, _names("/api/tags", "models", "name"))


def complete_loaded(incomplete: str) -> list[str]:
    """Complete models that are loaded."""
    return _beginning(incomplete, _names("/api/ps", "models", "name"))


def complete_alias(incomplete: str) -> list[str]:
    """Complete second names of models."""
    return _beginning(incomplete, _names("/puna/v1/aliases", "aliases", "alias"))


def complete_node(incomplete: str) -> list[str]:
    """Complete ids of nodes."""
    return _beginning(incomplete, _names("/puna/v1/nodes", "nodes", "id"))


def complete_key(incomplete: str) -> list[str]:
    """Complete ids of keys that a gateway knows."""
    return _beginning(incomplete, _names("/puna/v1/keys", "keys", "id"))


def complete_client(incomplete: str) -> list[str]:
    """Complete programs that `puna connect` knows."""
    from cli.core.connect.clients import CLIENTS  # noqa: PLC0415  # see _names

    return _beginning(incomplete, list(CLIENTS))


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _names(path: str, collection: str, field: str) -> list[str]:
    from cli.server import Server  # noqa: PLC0415  # every command line names its completions, few are asked for one

    try:
        answer = Server.of().get(quote(path), answer_within_s=ANSWER_WITHIN_S)
        return [str(item[field]).removesuffix(":latest") for item in answer.get(collection) or [] if field in item]
    except (CommandFailed, StartupError):
        return []

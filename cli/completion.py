"""What a shell offers when Tab is pressed: names that the server knows, or nothing. Never an error, never long."""

from collections.abc import Callable
from urllib.parse import quote

from cli.errors import CommandFailed
from common.startup_error import StartupError

# Somebody holds a key down and waits.
ANSWER_WITHIN_S = 1.0


def complete_model(incomplete: str) -> list[str]:
    """Models that can be used. The tag that is meant when none is written is left out."""
    names = _names("/api/tags", "models", "name")
    return _beginning(incomplete, [name.removesuffix(":latest") for name in names])


def complete_loaded(incomplete: str) -> list[str]:
    """Models that are loaded."""
    names = _names("/api/ps", "models", "name")
    return _beginning(incomplete, [name.removesuffix(":latest") for name in names])


def complete_alias(incomplete: str) -> list[str]:
    """Second names of models."""
    names = _names("/puna/v1/aliases", "aliases", "alias")
    return _beginning(incomplete, [name.removesuffix(":latest") for name in names])


def complete_node(incomplete: str) -> list[str]:
    """Ids of nodes."""
    return _beginning(incomplete, _names("/puna/v1/nodes", "nodes", "id"))


def complete_key(incomplete: str) -> list[str]:
    """Ids of keys that a gateway knows."""
    return _beginning(incomplete, _names("/puna/v1/keys", "keys", "id"))


Completer = Callable[[str], list[str]]


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _names(path: str, collection: str, field: str) -> list[str]:
    from cli.server import Server  # noqa: PLC0415  # every command line names its completions, few are asked for one
    from cli.settings import CliSettings  # noqa: PLC0415

    try:
        answer = Server.of(CliSettings.load()).get(quote(path), answer_within_s=ANSWER_WITHIN_S)
        return [str(item[field]) for item in answer.get(collection) or [] if field in item]
    except (CommandFailed, StartupError):
        return []

"""Shell completions: names that the server knows, or nothing. Completion never fails, and never takes long."""

from collections.abc import Callable, Collection
from urllib.parse import quote

from cli.errors import CommandFailed
from common.startup_error import StartupError

# The shell blocks until this returns.
ANSWER_WITHIN_S = 1.0


def complete_client(incomplete: str) -> list[str]:
    """Complete programs that `puna connect` knows."""
    from cli.core.connect.clients import CLIENTS  # noqa: PLC0415  # see _names

    return _beginning(incomplete, CLIENTS)


def _beginning(incomplete: str, names: Collection[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _names(path: str, collection: str, field: str) -> Callable[[str], list[str]]:
    """Return a completion of the names on a page of the server, without the tag that is meant when none is written."""

    def complete(incomplete: str) -> list[str]:
        from cli.server import Server  # noqa: PLC0415  # every command line names its completions, few are asked for one

        try:
            items = Server.of().get(quote(path), answer_within_s=ANSWER_WITHIN_S).get(collection) or []
        except (CommandFailed, StartupError):
            return []
        names = [str(item[field]).removesuffix(":latest") for item in items if field in item]
        return _beginning(incomplete, names)

    return complete


complete_model = _names("/api/tags", "models", "name")  # those that can be used
complete_loaded = _names("/api/ps", "models", "name")
complete_alias = _names("/puna/v1/aliases", "aliases", "alias")
complete_node = _names("/puna/v1/nodes", "nodes", "id")
complete_key = _names("/puna/v1/keys", "keys", "id")  # those that a gateway knows

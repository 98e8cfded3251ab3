"""The table of clients. Pure, and the one source of `puna connect`, of the page's view and of docs/clients.md."""

from cli.core.connect.client import ConnectClient
from cli.core.connect.editor_agents import EDITOR_AGENTS
from cli.core.connect.libraries import LIBRARIES
from cli.core.connect.terminal_agents import TERMINAL_AGENTS
from common.nearest import nearest

CLIENTS: dict[str, ConnectClient] = {client.key: client for client in (*TERMINAL_AGENTS, *EDITOR_AGENTS, *LIBRARIES)}
# Other spellings that people try.
_OTHER_NAMES = {
    "claude": "claude-code",
    "claudecode": "claude-code",
    "openwebui": "open-webui",
    "roo": "roo-code",
    "qwen": "qwen-code",
    "llama-index": "llamaindex",
    "vercel": "ai-sdk",
    "vercel-ai-sdk": "ai-sdk",
}


def client_named(name: str) -> ConnectClient:
    """Return the client of a name.

    Raises:
        ValueError: there is none; the text suggests the nearest name.
    """
    written = name.strip().lower().replace("_", "-").replace(" ", "-")
    client = CLIENTS.get(_OTHER_NAMES.get(written, written))
    if client is None:
        near = nearest(written, (*CLIENTS, *_OTHER_NAMES))
        hint = f"did you mean {_OTHER_NAMES.get(near, near)}?" if near else "`puna connect` lists the clients"
        raise ValueError(f"unknown client {name[:64]!r}; {hint}")
    return client

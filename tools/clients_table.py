"""docs/clients.md and the page's gateway/ui/clients.js, written from the table of clients.

`python -m tools.clients_table` writes both; `--check` only reports whether they are up to date.
"""

import json
import sys
from collections.abc import Iterator

from cli.core.connect.client import ConnectClient, Format, Setting, Values, filled, output_tokens
from cli.core.connect.clients import CLIENTS
from tools.generated import ROOT, write_or_check

DOCUMENT = ROOT / "docs" / "clients.md"
SCRIPT = ROOT / "gateway" / "ui" / "clients.js"
MODEL = "qwen3:8b"
URL = "http://127.0.0.1:11434"
_CONTEXT_ANY = 32768
# Languages of blocks that tests run or read; the others are shown as they are.
_FENCES = {Format.JSON: "json", Format.TOML: "toml", Format.YAML: "yaml", Format.SHELL: "sh"}
HEAD = f"""\
# Clients

`puna connect` lists these programs. `puna connect claude-code` prints what to set in one of them for the server that
the command talks to, and checks key, tools and context of the model.

- `--write` writes the client's files. What else they say stays; what they said is kept beside them (`.bak-puna`).
- `--fix` has the model loaded with the context that the client needs, as far as the cluster can hold it. That takes a
  key with `admin:cluster`.
- The page shows the same under *Connect*.

<!-- not run: needs the internet -->
```sh
puna pull {MODEL}
puna connect claude-code --model {MODEL} --write --fix
claude
```

**Context.** A coding agent sends 15,000 to 40,000 tokens with its first question. Small machines load a model with
4,096 if nothing else is set, and clients of OpenAI and Anthropic cannot ask for more: the model has to have it.

| command | does |
|---|---|
| `puna explain {MODEL} --num-ctx 65536` | shows if that fits, and where |
| `puna placements {MODEL} num_ctx=65536` | loads it with so many tokens from now on |
| `puna load {MODEL} --num-ctx 65536` | replaces a replica that is loaded with fewer |
| `puna create` with `PARAMETER num_ctx 65536` in a Modelfile | makes a second model with its own context |

**Keys.** The texts below are for a gateway that asks for none. Where it asks for keys, `puna connect` writes yours
(mode 0600), or names the variable `PUNA_API_KEY` where the client reads its key from one.

This page is written from the code: `python -m tools.clients_table`.
"""


def document() -> str:
    """Return the whole page."""
    lines = [HEAD, "| client | speaks | context | tools | files |", "|---|---|---|---|---|"]
    lines += [_row(client) for client in CLIENTS.values()]
    for client in CLIENTS.values():
        lines += ["", *_section(client)]
    return "\n".join(lines) + "\n"


def script() -> str:
    """Return the page's module."""
    clients = json.dumps([_as_json(client) for client in CLIENTS.values()], indent=2, ensure_ascii=False)
    return f"// Written from the table of clients: python -m tools.clients_table\n\nexport const CLIENTS = {clients};\n"


def _row(client: ConnectClient) -> str:
    context = f"{client.context_min}, better {client.context}" if client.context else "as your prompts need"
    files = ", ".join(f"`{setting.path}`" for setting in client.settings if setting.path) or "–"
    tools = "needed" if client.needs_tools else "–"
    name = f"[{client.name}](#{client.name.lower().replace(' ', '-')})"
    return f"| {name} | {client.dialect} | {context} | {tools} | {files} |"


def _section(client: ConnectClient) -> Iterator[str]:
    yield f"## {client.name}"
    context = client.context or _CONTEXT_ANY
    values = Values(url=URL, model=MODEL, context=context, output=output_tokens(client, context))
    for setting in client.settings:
        text = filled(setting.text, values)
        if text.strip():
            yield from ("", f"{_title(setting)}:", "")
            if setting.format is Format.SHELL and not text.startswith("export "):
                yield "<!-- not run: needs the internet -->"
            yield from (f"```{_FENCES.get(setting.format, 'text')}", text.rstrip(), "```")
    if client.start:
        yield from ("", f"Start it with `{client.start}`.")
    yield from ("", *(f"- {text}" for text in client.limits))


def _title(setting: Setting) -> str:
    if not setting.path:
        return setting.title[0].upper() + setting.title[1:]
    moved = [f"${name}" + (f"/{below}" if below else "") for name, below in setting.moved_by]
    return f"`{setting.path}`" + (f" (or in {' or '.join(f'`{one}`' for one in moved)})" if moved else "")


def _as_json(client: ConnectClient) -> dict[str, object]:
    return {
        "key": client.key,
        "name": client.name,
        "context_min": client.context_min,
        "context": client.context,
        "output": client.output,
        "needs_tools": client.needs_tools,
        "start": client.start,
        "limits": client.limits,
        "settings": [{"title": one.title, "path": one.path, "text": one.text} for one in client.settings],
    }


def main(arguments: list[str]) -> int:
    """Write the files, or check them. 1: not up to date."""
    return write_or_check({DOCUMENT: document(), SCRIPT: script()}, arguments, tool="clients_table")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

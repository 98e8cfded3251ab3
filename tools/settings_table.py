"""docs/settings.md and deploy/puna.env.example, written from the settings classes.

`python -m tools.settings_table` writes both; `--check` only reports whether they are up to date.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from cli.settings import CliSettings
from common.effective_settings import setting_texts
from common.ollama_environment import EQUIVALENTS
from common.ollama_environment import PREFIX as OLLAMA
from common.settings import PREFIX, PunaSettings
from discovery.settings import DiscoverySettings
from gateway.settings import GatewaySettings
from runner.host.settings import HostSettings
from runner.serve.settings import RunnerSettings
from scheduler.settings import SchedulerSettings
from tools.generated import ROOT, write_or_check

DOCUMENT = ROOT / "docs" / "settings.md"
EXAMPLE = ROOT / "deploy" / "puna.env.example"
PROCESSES: dict[str, type[PunaSettings]] = {
    "Every process": PunaSettings,
    "Gateway": GatewaySettings,
    "Scheduler": SchedulerSettings,
    "Discovery": DiscoverySettings,
    "Host": HostSettings,
    "Runner": RunnerSettings,
    "Command line": CliSettings,
}
HEAD = """\
# Settings

Every setting is a variable of the environment. An unknown name stops the start, and the message says which known one is
nearest; so does a bad value. One environment may serve all processes: each accepts the names of the others. Runners
have the environment of their host. `puna doctor` shows what is in effect, `GET /puna/v1/config` what is for a gateway.

Where a `PUNA_` name is not set, the `OLLAMA_` name beside it counts, read as Ollama reads it, and the log says so
(`PUNA_OLLAMA_ENV=0` turns that off). [deploy/puna.env.example](../deploy/puna.env.example) has all of them.

This page is written from the code: `python -m tools.settings_table`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting of one process."""

    name: str
    default: str
    ollama: str  # the name that counts if this one is not set; empty: none
    text: str


def rows(kind: type[PunaSettings]) -> Iterator[Row]:
    """Yield the settings that a class adds to its bases, in its order.

    Raises:
        ValueError: a setting has no docstring.
    """
    texts = setting_texts(kind)
    for field, info in kind.model_fields.items():
        if kind is not PunaSettings and field in PunaSettings.model_fields:
            continue
        if field not in texts:
            raise ValueError(f"{kind.__name__}.{field} has no docstring")
        theirs = EQUIVALENTS.get(field.upper())
        yield Row(
            name=PREFIX + field.upper(),
            default=_default(info.get_default(call_default_factory=True)),
            ollama=OLLAMA + theirs[0] if theirs else "",
            text=texts[field],
        )


def document() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for title, kind in PROCESSES.items():
        lines = [
            f"| {_code(row.name)} | {_code(row.default)} | {_code(row.ollama)} | {row.text} |" for row in rows(kind)
        ]
        parts += [f"## {title}", "", "| setting | default | Ollama's | effect |", "|---|---|---|---|", *lines, ""]
    return "\n".join(parts)


def example() -> str:
    """Return a file for `env_file`, with everything commented out. A name that several processes read appears once."""
    parts = [
        "# Every setting of Puna with its default. Take away the # before what you change. docs/settings.md says more."
    ]
    seen: set[str] = set()
    for title, kind in PROCESSES.items():
        parts.append(f"\n# ---- {title} ----")
        for row in rows(kind):
            if row.name not in seen:
                seen.add(row.name)
                parts.append(f"\n# {row.text}\n#{row.name}={row.default}")
    return "\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if text else "–"


def _default(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def main(arguments: list[str]) -> int:
    """Write the files, or check them. 1: not up to date."""
    return write_or_check({DOCUMENT: document(), EXAMPLE: example()}, arguments, tool="settings_table")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

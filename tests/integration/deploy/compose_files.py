"""The compose files as compose reads them: `${NAME:-default}` filled in, extension fields left out."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
MAIN = "docker-compose.yml"
FOLDER = "deploy/compose"
HOST = f"{FOLDER}/host.yml"
ADDITIONS = tuple(
    sorted(f"{FOLDER}/{path.name}" for path in (ROOT / FOLDER).glob("*.yml") if f"{FOLDER}/{path.name}" != HOST)
)
FILES = (MAIN, *ADDITIONS, HOST)
ARTIFACTS = ROOT / "build" / "artifacts" / "compose"
# What has no default: an operator must say it.
SAID = {
    "PRIVATE_ADDRESS": "10.0.0.1",
    "NODE_NAME": "beta",
    "NODE_ADDRESS": "10.0.0.2",
    "DISCOVERY_ADDRESS": "10.0.0.1:7601",
}
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z0-9_]+)(?::(?P<kind>[-?])(?P<rest>(?:[^{}])*))?\}")

Service = Mapping[str, Any]


def variables(file: str) -> set[str]:
    """Every variable that a file reads."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = (line.partition(" # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {found["name"] for line in lines for found in _VARIABLE.finditer(line)}


def document(file: str) -> dict[str, Any]:
    """A file with the defaults of its variables, and SAID."""

    def value(found: re.Match[str]) -> str:
        default = found["rest"] if found["kind"] == "-" else None
        return SAID.get(found["name"], default) or ""

    text = (ROOT / file).read_text(encoding="utf-8")
    lines = ("" if line.lstrip().startswith("#") else _VARIABLE.sub(value, line) for line in text.splitlines())
    loaded: dict[str, Any] = yaml.safe_load("\n".join(lines))
    return loaded


def services(file: str) -> dict[str, Service]:
    """The services of a file; those of an addition together with what the main file says of them."""
    own: dict[str, Service] = document(file)["services"]
    if file not in ADDITIONS:
        return own
    main = document(MAIN)["services"]
    return {name: _merged(main[name], service) for name, service in own.items()}


def _merged(base: Service, more: Service) -> Service:
    """As compose merges two files: maps by key, lists one after the other, commands replaced."""
    merged = dict(base)
    for name, value in more.items():
        before = base.get(name)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[name] = before | value
        elif isinstance(before, list) and isinstance(value, list) and name != "command":
            merged[name] = [*before, *value]
        else:
            merged[name] = value
    return merged

"""Names in the documents exist: settings, metrics, commands and options, make targets, files, routes, scopes."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from common.ollama_environment import EQUIVALENTS
from common.settings import KNOWN_NAMES, REPLACED
from gateway.core.keys.keys import Scope
from gateway.http.endpoint.service import Service
from gateway.http.routes import make_routes
from scheduler.core.planning.candidates import Verdict
from tools.docs_commands import COMMANDS
from tools.docs_markdown import ROOT, pages
from tools.metrics_catalogue import MODULES, entries

# Pages whose subject is another time or another project's words.
OTHERS = {"CHANGELOG.md", "settings.md"}
PAGES = [page for page in pages() if page.name not in OTHERS]
# Of the compose files and of the generators, not of a process.
FOREIGN = {"PUNA_IMAGE", "PUNA_CUDA_IMAGE", "PUNA_BENCH_MODELS"}


def _codes(page: Path) -> Iterator[str]:
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text(encoding="utf-8"))


def test_every_setting_that_is_named_exists() -> None:
    unknown = {
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(r"\bPUNA_[A-Z0-9_]*[A-Z0-9]\b", page.read_text(encoding="utf-8"))
        if name not in KNOWN_NAMES | REPLACED.keys() | FOREIGN
    }
    assert unknown - {"commands.md: PUNA_HOSTT"} == set()  # its example of a misspelt one


def test_every_equivalent_of_ollama_that_is_named_exists() -> None:
    known = {f"OLLAMA_{theirs[0]}" for theirs in EQUIVALENTS.values()} | {"OLLAMA_HOST"}
    named = {name for page in PAGES for code in _codes(page) for name in re.findall(r"\bOLLAMA_[A-Z_]+\b", code)}
    assert named - known == {"OLLAMA_"} & named


def test_every_metric_that_is_named_exists() -> None:
    known = {entry.name for module in MODULES.values() for entry in entries(module)}
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_sum", "_count")}
    unknown = {
        f"{page.name}: {code}"
        for page in PAGES
        for code in _codes(page)
        if re.fullmatch(r"puna_[a-z]+_[a-z0-9_]+", code) and code not in known
    }
    assert unknown == set()


def test_every_command_of_puna_that_is_named_takes_these_options() -> None:
    named = [(page, code) for page in PAGES for code in _codes(page) if code.startswith("puna ")]
    assert len(named) > 30
    wrong = [f"{page.name}: {code}" for page, code in named if not _is_command(code)]
    assert wrong == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {match[1] for page in PAGES for code in _codes(page) if (match := re.match(r"make ([a-z0-9-]+)", code))}
    assert len(named) > 10
    assert named - targets == set()


def test_every_file_that_is_named_exists() -> None:
    folders = "bench|cli|common|deploy|discovery|docs|gateway|protos|runner|scheduler|tests|tools"
    missing = {
        f"{page.name}: {code}"
        for page in PAGES
        for code in _codes(page)
        if re.fullmatch(rf"(?:{folders})/[\w./-]+", code) and not (ROOT / code).exists()
    }
    assert missing == set()


def test_every_route_is_in_a_page() -> None:
    text = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("api.md", "operators.md", "metrics.md", "settings.md")
    )
    nothing = cast("Any", None)
    service = Service(inference=nothing, scheduler=nothing, stores=nothing, version="0")
    routes = make_routes(service)
    missing = {route.path for route in routes if route.path != "/ui/{file}" and not _is_named(route.path, text)}
    assert missing == set()


def test_the_scopes_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    table = text.partition("| scope | opens |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([a-z:]+)` \|", table, re.MULTILINE)) == set(Scope)


def test_the_verdicts_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert [verdict for verdict in Verdict if f"`{verdict}`" not in text] == []


def test_the_routes_that_need_no_key_are_named() -> None:
    nothing = cast("Any", None)
    routes = make_routes(Service(inference=nothing, scheduler=nothing, stores=nothing, version="0"))
    text = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    sentence = text.partition("With it every route but ")[2].partition(" needs a key")[0]
    paths = {route.path for route in routes if route.scope is None and not route.needs_key}
    assert set(re.findall(r"`([^`]+)`", sentence)) == paths - {"/ui/{file}"}


def _is_command(code: str) -> bool:
    """Return True if the words name a command, and each option is one of that command's."""
    try:
        words = shlex.split(code.replace("…", "X"))[1:]
    except ValueError:
        return False
    group = COMMANDS
    while words and hasattr(group, "commands"):
        if words[0].startswith("-"):
            break
        if words[0] not in group.commands:
            return words[0].isupper()  # a placeholder
        group = group.commands[words.pop(0)]
    options = {option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)}
    named = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return set(named) <= options | {"--help", "--install-completion", "--show-completion"}


def _is_named(path: str, text: str) -> bool:
    plain = re.escape(re.sub(r"\{[^}]*\}", "{}", path)).replace(r"\{\}", r"[^`\s]*")  # as the code or the page calls it
    return re.search(rf"{plain}(?![\w/])", text) is not None

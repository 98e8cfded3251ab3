"""A part of the table of official clients on every run; `make conformance` runs all of it and writes the page."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.conformance.cases import TABLE
from tests.conformance.stage import known_facts
from tests.conformance.worker import KINDS, run_case
from tools.conformance.document import split_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
# What the demo model alone can show, quickly.
QUICK = (
    "openai: answer",
    "openai: usage: last chunk has no choices",
    "openai: stop",
    "openai: logit_bias",
    "openai: tools",
    "openai: think_budget",
    "openai: token ids as prompts",
    "openai: response",
    "openai: server-side state",
    "openai: custom tools",
    "openai: namespaces and hosted tools",
    "openai: items of other servers",
    "openai: input_tokens and compact",
    "openai: a prompt that is too long",
    "openai: an unknown model",
    "anthropic: answer",
    "anthropic: tools",
    "anthropic: budget_tokens",
    "anthropic: stop_sequences",
    "anthropic: a prompt that is too long",
    "anthropic: an unknown model",
    "ollama: chat",
    "ollama: generate",
    "ollama: tools",
    "ollama: an unknown model",
)


@pytest.fixture(scope="module")
def facts(cluster: Cluster) -> dict[str, Any]:
    return known_facts(open={"url": cluster.url, "key": "any"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in QUICK for mode in TABLE[name].modes], ids=lambda value: value
)
async def test_official_clients_get_what_they_expect(name: str, mode: str, kind: str, facts: dict[str, Any]) -> None:
    await run_case(TABLE[name], kind, mode, facts)


def test_the_page_has_every_case_of_the_table_and_no_other() -> None:
    text, _ = split_page(PAGE.read_text(encoding="utf-8"))
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    shown = [row for row in rows if row not in ("Case", "Clients", "npm") and not row.startswith("Python, ")]
    assert sorted(shown) == sorted(case.name for case in TABLE.values())


def test_the_cases_in_javascript_are_those_of_the_table() -> None:
    folder = Path(__file__).resolve().parents[1] / "conformance" / "js"
    for dialect in ("openai", "ollama"):
        text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{dialect}_*.mjs")))
        names = re.findall(r'\bname: "([^"]+)",\s+(?:modes|stage|run):', text)
        cases = [case.name for case in TABLE.values() if case.dialect == dialect and not case.not_npm]
        assert sorted(names) == sorted(cases)

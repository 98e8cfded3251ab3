"""docs/clients.md and the page's script are what the table of clients says."""

import json
import re

from cli.core.connect.clients import CLIENTS
from tools.clients_table import DOCUMENT, SCRIPT, document, script


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "python -m tools.clients_table"


def test_the_script_is_up_to_date() -> None:
    assert SCRIPT.read_text(encoding="utf-8") == script(), "python -m tools.clients_table"


def test_the_script_is_a_list_of_all_clients() -> None:
    found = re.search(r"^export const CLIENTS = (\[.*\]);\n$", script(), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert [client["key"] for client in json.loads(found[1])] == list(CLIENTS)


def test_each_client_has_a_section_with_a_text() -> None:
    text = document()
    for client in CLIENTS.values():
        _, _, section = text.partition(f"\n## {client.name}\n")
        assert "```" in section.partition("\n## ")[0]

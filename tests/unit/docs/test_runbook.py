"""docs/runbook.md is the catalogue of faults, and what its rows name exists."""

import re

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from cli.command_line import app
from gateway.http.puna.chaos import FaultName
from tools.generated import ROOT
from tools.metrics_catalogue import MODULES, entries
from tools.runbook import DOCUMENT, FAULTS, Fault, page

PROMETHEUS = ROOT / "deploy" / "prometheus"
# Of the client library and of Prometheus itself.
FOREIGN = {"process_resident_memory_bytes", "process_open_fds", "up"}


def alerts() -> set[str]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_the_page_is_up_to_date() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == page(), "run: python -m tools.runbook"


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) > 25


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_a_row_names_exists(fault: Fault) -> None:
    text = f"{fault.seen} {fault.action}"
    metrics = {name for name in re.findall(r"`((?:puna|process)_[a-z_]+)`", text) if name not in FOREIGN}
    assert metrics <= {entry.name for module in MODULES.values() for entry in entries(module)}
    commands = set(re.findall(r"`puna ([a-z]+)", f"{fault.made_by} {text}"))
    assert commands <= known_commands()
    assert set(fault.alerts) <= alerts()
    assert fault.seen
    assert fault.action.endswith((".", ")"))


def known_commands() -> set[str]:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return set(command.commands)


def test_every_alert_leads_to_a_row() -> None:
    assert alerts() == {name for fault in FAULTS for name in fault.alerts}


def test_every_fault_that_can_be_made_has_a_row() -> None:
    made = " ".join(fault.made_by for fault in FAULTS)
    assert {name.value for name in FaultName} == set(re.findall(r"puna chaos ([a-z]+)", made))

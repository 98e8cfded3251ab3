"""A program and an agent that install in seconds, on every run; `make clients` runs all and writes their table.

They speak Chat completions, Ollama and Responses; the official client of Messages is run by tests/e2e.
"""

import pytest

from tools.clients.__main__ import NoNamespace, run_clients
from tools.clients.catalogue import CLIENTS
from tools.clients.rows import Row
from tools.clients.stage import Task

QUICK = [client for client in CLIENTS if client.is_quick]
TASKS = [(client.name, task, stream) for client in QUICK for task in client.tasks for stream in task.streams]

pytestmark = pytest.mark.timeout(1800)  # of the one run that all rows are of, downloads included


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    try:
        return run_clients(QUICK)
    except NoNamespace as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("client", "task", "stream"),
    [pytest.param(*one, id=f"{one[0]}, {one[1].dialect}, {one[1].name}, stream={one[2]}") for one in TASKS],
)
def test_a_client_does_its_task(client: str, task: Task, stream: bool, rows: list[Row]) -> None:
    row = next(row for row in rows if row.key == (client, task.dialect, task.name) and row.stream == stream)
    if not row.version:
        pytest.skip(f"{client} cannot be installed: {row.why}")
    assert row.why == ""

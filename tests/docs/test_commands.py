"""Every block of the documents does what its page says.

A block is run as it stands, with the ports of a real cluster in place of the page's. The comment right above it says
what else holds:

| comment | meaning |
|---|---|
| `not run: WHY` | no machine of the tests can; its commands and their arguments are checked all the same |
| `output` | what the block before it prints, with … for what differs |
| `file: NAME` | the content of a file that other blocks of the page name |
| `placements` | a file of PUNA_PLACEMENTS, read as the scheduler reads it |
| `own cluster` | it starts and stops clusters of its own |
| `with keys` | at a gateway that asks for keys; the caller's key may do everything |
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from scheduler.app import read_constraints_file
from tests.cluster import Cluster, start_cluster
from tests.docs.desk import Desk, OwnDesk, agrees, missing_line
from tools.docs_commands import problems
from tools.docs_markdown import Block, blocks, pages

BLOCKS = [block for page in pages() for block in blocks(page)]
# Why a block is not run. Docker and Kubernetes are tried by tests of their own, with the files that blocks name.
REASONS = (
    "needs a GPU",
    "needs another machine",
    "needs Docker",
    "needs Kubernetes",
    "needs root",
    "needs the internet",
    "takes minutes",
)
SCOPES = ("infer", "embed", "models:read", "models:write", "metrics", "admin:cluster", "admin:keys")
READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
    "toml": tomllib.loads,
}
RUN = ("sh", "console", "python")
LANGUAGES = {"sh", "console", "python", "text", "modelfile", *READERS}


class Desks:
    """One desk for each page, and one more for its blocks with keys; and the desk of the block that was run last."""

    def __init__(self, request: pytest.FixtureRequest, root: Path) -> None:
        self._request = request
        self._root = root
        self._desks: dict[tuple[Path, bool], Desk] = {}
        self.last: Desk | None = None

    def of(self, page: Path, *, with_keys: bool) -> Desk:
        """Made when the first block needs it, with the files that blocks of the page are."""
        known = self._desks.get((page, with_keys))
        if known is not None:
            return known
        folder = self._root / f"{page.parent.name}-{page.stem}{'-keys' if with_keys else ''}"
        if with_keys:
            cluster, key = self._request.getfixturevalue("locked")
            made = Desk(folder=folder, cluster=cluster, environment={"PUNA_API_KEY": key, "ADMIN": key})
        else:
            made = Desk(folder=folder, cluster=self._request.getfixturevalue("cluster"))
        made.prepare()
        for block in blocks(page):
            kind, _, name = block.marker.partition(": ")
            if kind == "file":
                made.write(block, name)
        return self._desks.setdefault((page, with_keys), made)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = start_cluster(tmp_path_factory.mktemp("docs") / "home")
    try:
        # What the pages call a model that somebody has pulled.
        assert running.post("/api/copy", {"source": "demo", "destination": "llama3:8b"}).status_code == 200
        # Loaded once, so that whoever asks why it is there need not wait for its bytes to be counted.
        assert running.post("/api/generate", {"model": "demo", "prompt": "Hello", "stream": False}).status_code == 200
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A cluster that asks for keys, and a key that may do everything."""
    home = tmp_path_factory.mktemp("locked")
    command = [sys.executable, "-m", "cli.main", "keys", "create", "--json", "--file", str(home / "keys.json")]
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    made = subprocess.run([*command, "--owner", "root", *scopes], capture_output=True, text=True, check=True)
    key = json.loads(made.stdout)["key"]
    running = start_cluster(home / "home", PUNA_API_KEYS_FILE=str(home / "keys.json"), PUNA_API_KEY=key)
    try:
        yield running, key
    finally:
        running.stop()


@pytest.fixture(scope="session")
def desks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Desks:
    return Desks(request, tmp_path_factory.mktemp("desks"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_a_block_does_what_its_page_says(block: Block, desks: Desks, tmp_path: Path) -> None:
    assert block.language in LANGUAGES, f"say of which language it is: {sorted(LANGUAGES)}"
    kind, _, detail = block.marker.partition(": ")
    if kind == "not run":
        assert detail.startswith(REASONS), f"a block may only be left out because it {', or it '.join(REASONS)}"
        assert problems(block.text) == []
    elif kind == "output":
        assert desks.last is not None, "the block before it shows no output, or was not run"
        shown = desks.last.addresses(block.text)
        assert agrees(shown, desks.last.output), f"this is what came:\n{desks.last.output}"
    elif block.language not in RUN:
        READERS.get(block.language, str)(block.text)
        if kind == "placements":
            (tmp_path / "placements.toml").write_text(block.text)
            assert read_constraints_file(str(tmp_path / "placements.toml"))
    elif kind == "own cluster":
        own = OwnDesk(folder=tmp_path, cluster=desks.of(block.page, with_keys=False).cluster)
        own.prepare()
        try:
            own.run(block)
        finally:
            own.stop()
    else:
        desks.last = desks.of(block.page, with_keys=kind == "with keys")
        desks.last.run_dialogue(block) if block.language == "console" else desks.last.run(block)


def test_most_blocks_are_run() -> None:
    commands = [block for block in BLOCKS if block.language in RUN]
    left_out = [block for block in commands if block.marker.startswith("not run")]
    assert len(commands) > 25
    assert len(left_out) < len(commands) / 2


def test_a_text_holds_no_commands() -> None:
    hidden = ("puna ", "curl ", "make ", "docker", "kubectl ", "python ", ".venv/", "$ ")
    assert [block.name for block in BLOCKS if block.language == "text" and block.text.startswith(hidden)] == []


def test_an_output_that_differs_is_noticed() -> None:
    assert agrees("demo  …  MB\n…\nlast", "demo:latest  3 MB\nx\ny\nlast one")
    assert not agrees("demo … GB", "demo 3 MB")
    assert missing_line("NAME  SIZE\ndemo  3 MB", "NAME   SIZE\ndemo   17 GB\n") == []
    assert missing_line("demo  ready", "demo  loading") == ["demo  ready"]

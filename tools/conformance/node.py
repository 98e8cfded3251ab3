"""The npm packages, where Node is at hand."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "tests" / "conformance" / "js"
NODE_MAJOR_MIN = 20


def prepare(folder: Path) -> str:
    """Install the packages of the lock file; why that is not possible, or nothing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "node or npm is missing"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR_MIN:
        return f"node {version} is too old"
    folder.mkdir(parents=True, exist_ok=True)
    for path in SOURCE.iterdir():
        shutil.copy(path, folder / path.name)
    done = subprocess.run(
        [npm, "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"npm ci failed: {done.stderr.strip()[-200:]}"


def command(folder: Path, facts: Path) -> list[str]:
    """Return the command that runs the cases."""
    return ["node", str(folder / "run.mjs"), str(facts)]


def environment() -> dict[str, str]:
    """Without what would point the clients elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "OLLAMA_"))}

"""Promises about the tree itself that no linter checks."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Subjects of later commits have the form `scope: imperative summary`.
SUBJECTS_SINCE = "a7c13b8"
SUBJECT_LENGTH_MAX = 72
# A module holds one idea; a longer one hides a second.
MODULE_LINES_MAX = 600
# A folder can be taken in at a glance; a fuller one hides an order.
MODULES_MAX = 32


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository that match; everything below the root where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_modules_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py")
        if "tests" not in path.parts
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > MODULE_LINES_MAX
    }
    assert long == {}


def test_folders_are_small() -> None:
    modules = Counter(str(path.parent.relative_to(ROOT)) for path in tracked("*.py") if "tests" not in path.parts)
    assert {folder: count for folder, count in modules.items() if count > MODULES_MAX and folder != "protos"} == {}


def test_locks_carry_hashes_and_no_index_addresses() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)
        pinned = re.findall(r"^([a-z0-9][\w.-]*)==", text, re.MULTILINE)
        assert "llama-cpp-python" in pinned
        assert text.count("--hash=sha256:") >= len(pinned)


def test_no_file_of_the_repository_is_a_link() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, check=True, text=True)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000 ")] == []


def test_unit_and_integration_tests_do_not_sleep() -> None:
    sleeping = [
        str(path.relative_to(ROOT))
        for path in tracked(
            "tests/unit/**/*.py", "tests/integration/**/*.py", "tests/unit/*.py", "tests/integration/*.py"
        )
        if re.search(r"\b(time|asyncio|anyio)\.sleep\((?!0\))", path.read_text(encoding="utf-8"))
        and path != Path(__file__)
    ]
    assert sleeping == []


def test_there_are_no_leftovers() -> None:
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|NotImplemented" + r"Error)\b")
    found = [
        str(path.relative_to(ROOT))
        for path in tracked("*.py", "*.proto")
        if marker.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_commit_subjects_name_their_scope() -> None:
    log = ["git", "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    found = subprocess.run(log, cwd=ROOT, capture_output=True, check=False, text=True)
    if found.returncode:
        pytest.skip(f"the history does not reach back to {SUBJECTS_SINCE}")
    form = re.compile(r"[a-z0-9_./,{}-]+: \S")
    subjects = found.stdout.splitlines()
    assert [line for line in subjects if len(line) > SUBJECT_LENGTH_MAX or not form.match(line)] == []

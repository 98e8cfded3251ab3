"""The version of a build: read from git in a checkout, and kept in a package."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from common.version import COMMIT_DIGITS, checkout_commit, puna_version

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=directory, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    root = tmp_path / "tree"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    (root / "file").write_text("one")
    git(root, "add", "file")
    git(root, "commit", "--quiet", "--message=one")
    return root


def commit_of(tree: Path) -> str:
    return git(tree, "rev-parse", "HEAD")[:COMMIT_DIGITS]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The module that builds wheels."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_checkout_tells_its_commit_without_git(tree: Path) -> None:
    assert checkout_commit(tree) == commit_of(tree)


def test_so_do_packed_branches_second_trees_and_a_commit_without_a_branch(tree: Path) -> None:
    git(tree, "pack-refs", "--all")
    assert not (tree / ".git" / "refs" / "heads" / "main").exists()
    assert checkout_commit(tree) == commit_of(tree)
    other = tree.parent / "other"
    git(tree, "worktree", "add", "--quiet", "-b", "work", str(other))
    assert checkout_commit(other) == commit_of(tree)
    git(tree, "checkout", "--quiet", "--detach")
    assert checkout_commit(tree) == commit_of(tree)


def test_what_is_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert checkout_commit(tmp_path) is None
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    assert checkout_commit(tmp_path) is None


def test_a_wheel_keeps_the_commit_and_whether_the_tree_was_changed(
    tree: Path, hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOURCE_COMMIT", raising=False)
    assert hook._commit(tree) == commit_of(tree)
    (tree / "file").write_text("two")
    assert hook._commit(tree) == f"{commit_of(tree)}.dirty"
    (tree / "below").mkdir()
    assert hook._commit(tree / "below") == ""


def test_an_image_is_told_the_commit(tmp_path: Path, hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_COMMIT", "0123456789abcdef0123456789abcdef01234567")
    assert hook._commit(tmp_path) == "0123456789ab"
    monkeypatch.setenv("SOURCE_COMMIT", "0123456-dirty")
    assert hook._commit(tmp_path) == "0123456.dirty"
    monkeypatch.setenv("SOURCE_COMMIT", "$(git rev-parse HEAD)")
    with pytest.raises(SystemExit, match="is no commit"):
        hook._commit(tmp_path)


def test_the_version_is_one_that_packages_may_have() -> None:
    release, plus, commit = puna_version().partition("+")
    assert release
    assert (len(commit.removesuffix(".dirty")) >= 7) == bool(plus)

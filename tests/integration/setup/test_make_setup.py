"""`make setup` as users see it: its stages, a build that fails, one that is interrupted, and a second start."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.setup.small_checkout import BAD_CODE, COMPILE, ENDS_WITHIN_S, SmallCheckout
from tests.waiting import wait_until

STAGES = ("environment", "packages", "engine", "Puna", "check")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed"),
]


@pytest.fixture
def checkout(tmp_path: Path) -> SmallCheckout:
    made = SmallCheckout(root=tmp_path / "checkout")
    made.root.mkdir()
    made.write()
    return made


def test_a_setup_runs_once_and_then_only_what_has_changed(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0")
    status, output = checkout.set_up()
    assert status == 0, output
    assert [stage for stage in STAGES if f"/5] {stage}: " not in output] == []
    assert "compiling 1/1" in output
    assert "Set up in" in output

    assert checkout.set_up()[1].count("[") == 0
    for name in ("requirements-dev.lock", "pyproject.toml", "hatch_build.py", "tools/protos.py", "protos/small.proto"):
        (checkout.root / name).touch()
    status, output = checkout.set_up()
    assert (status, output.strip()) == (0, ""), "a file that was only touched"

    (checkout.root / "pyproject.toml").write_text((checkout.root / "pyproject.toml").read_text() + "# more\n")
    status, output = checkout.set_up()
    assert status == 0, output
    assert "[1/1] Puna" in output
    assert "engine" not in output

    checkout.provide_engine("2.0")
    status, output = checkout.set_up()
    assert status == 0, output
    assert "[1/2] engine" in output
    assert "packages" not in output

    status, output = checkout.set_up("CMAKE_ARGS=-DOTHER=on")
    assert status == 0, output
    assert "compiling" not in output, "make sees no file that changed"
    (checkout.root / "pyproject.toml").touch()
    status, output = checkout.set_up("CMAKE_ARGS=-DOTHER=on")
    assert status == 0, output
    assert "compiling 1/1" in output, "other flags, the same version"


def test_a_new_version_of_the_engine_is_built_with_the_flags_of_the_last(
    checkout: SmallCheckout, tmp_path: Path
) -> None:
    noted, flags = tmp_path / "flags", "-DGGML_RPC=on -DGGML_CUDA=on"
    rule = f'echo "$$CMAKE_ARGS" > {noted} && {COMPILE}'
    checkout.provide_engine("1.0", rule=rule)
    assert checkout.set_up(CMAKE_ARGS=flags)[0] == 0
    noted.unlink()
    checkout.provide_engine("2.0", rule=rule)
    status, output = checkout.set_up()
    assert status == 0, output
    assert noted.read_text().startswith(f"{flags} -D")


def test_an_engine_for_gpus_is_not_replaced_when_the_record_of_its_flags_is_lost(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0")
    assert checkout.set_up()[0] == 0
    (packages,) = checkout.root.glob(".venv/lib/python*/site-packages")
    library = packages / "llama_cpp" / "lib" / "libggml-cuda.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (checkout.root / ".venv" / "setup.json").write_text("{")
    checkout.provide_engine("2.0")
    status, output = checkout.set_up()
    assert status != 0
    assert 'CMAKE_ARGS="-DGGML_RPC=on -DGGML_CUDA=on" make setup' in output
    assert library.exists()

    status, output = checkout.set_up(CMAKE_ARGS="-DGGML_RPC=on -DGGML_CUDA=on")
    assert status == 0, output
    assert checkout.is_ready()


def test_a_build_that_fails_ends_with_its_errors_and_the_next_one_goes_on(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0", code=BAD_CODE)
    status, output = checkout.set_up()
    assert status != 0
    last = output.splitlines()[-8:]
    assert any("answer.cpp:1:" in line and "missing_name" in line for line in last), output
    assert any(".venv/setup.log" in line for line in last)
    assert "Traceback" not in output
    assert "missing_name" in (checkout.root / ".venv" / "setup.log").read_text()
    assert not checkout.is_ready()

    checkout.provide_engine("1.1")
    status, output = checkout.set_up()
    assert status == 0, output
    assert checkout.is_ready()


def test_an_interrupted_build_leaves_nothing_that_is_believed(checkout: SmallCheckout, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    checkout.provide_engine("1.0", rule=f"echo $$$$ > {pid_file} && exec sleep 3600")
    process = checkout.start()
    wait_until(
        lambda: pid_file.exists() and pid_file.read_text().strip() != "", deadline_s=ENDS_WITHIN_S, what="it compiles"
    )
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Interrupted" in output
    assert "Traceback" not in output
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists(), "the compiler still runs"
    assert not checkout.is_ready()

    checkout.provide_engine("1.0")
    status, output = checkout.set_up()
    assert status == 0, output
    assert checkout.is_ready()


def test_a_package_that_was_half_installed_is_installed_again(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0")
    assert checkout.set_up()[0] == 0
    (half,) = checkout.root.glob(".venv/lib/python*/site-packages/small_package-1.0.dist-info")
    (half / "INSTALLER").unlink()
    (checkout.root / ".venv" / ".ready").unlink()
    status, output = checkout.set_up()
    assert status == 0, output
    assert (half / "INSTALLER").exists()


def test_what_is_missing_is_said_before_anything_is_made(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0")
    status, output = checkout.set_up(CXX="g++-of-another-machine")
    assert status != 0
    assert "apt-get install g++" in output
    assert not (checkout.root / ".venv").exists()


def test_an_index_that_has_nothing_is_told_as_such(checkout: SmallCheckout) -> None:
    checkout.provide_engine("1.0")
    for source in (checkout.root / "index").glob("small*"):
        source.unlink()
    status, output = checkout.set_up()
    assert status != 0
    assert "No matching distribution found for small-package==1.0" in output
    assert "To do: the package index" in output

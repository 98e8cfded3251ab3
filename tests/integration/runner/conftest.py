"""Tiny models, built once per test session; what came of each is told at the end."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.client import RunnerClient
from tests.integration.runner.contract import Driver, driven
from tests.integration.runner.engine_kinds import KINDS, Kind, layout
from tools.model_zoo import ZOO, build
from tools.model_zoo.catalogue import recipe_of
from tools.model_zoo.recipe import WeightType

Zoo = Callable[[str], Path]
EVERY_MODEL = "B-153"  # tests with this behaviour compare one model with llama.cpp's own classes
_agreed: dict[str, bool] = {}


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The file of a zoo model by its name."""
    directory = tmp_path_factory.mktemp("zoo")
    return lambda name: build(name, directory)


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The file of a zoo model in Q8_0: with fused attention over less than 512 cells, inputs are computed alike."""
    directory = tmp_path_factory.mktemp("quantized")
    return lambda name: build(replace(recipe_of(name), name=f"{name}_q8", weights=WeightType.Q8_0), directory)


@pytest.fixture(params=[False, True], ids=["a call each", "one call"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients ask for sequences in both of the ways that there are."""
    monkeypatch.setattr(RunnerClient, "multiplexes", request.param)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of the engines that generate."""
    return KINDS[request.param]


@pytest.fixture
def driver(kind: Kind, zoo: Zoo) -> Iterator[Driver]:
    """It, loaded."""
    with driven(kind.create(zoo("dense"), layout())) as driver:
        yield driver


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note how each model fared."""
    report = yield
    marked = any(EVERY_MODEL in mark.args for mark in item.iter_markers("behaviour"))
    parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    name = str(parameters.get("name") or parameters.get("model") or "")
    if marked and name and (report.when == "call" or report.failed):
        _agreed[name] = _agreed.get(name, True) and report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each architecture: whether it is supported, as the tests of this run found."""
    if not _agreed:
        return
    terminalreporter.section("models")
    for name, agreed in sorted(_agreed.items()):
        word = "supported" if agreed else "NOT supported"
        terminalreporter.write_line(f"{name:16} {ZOO[name].family.value:12} {word:14} {ZOO[name].about}")

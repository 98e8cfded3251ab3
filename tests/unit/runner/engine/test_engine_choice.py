"""Choice of the engine for a model."""

import sys
from pathlib import Path

import pytest

from common.errors import InvalidRequest
from common.spec.layout import Layout
from runner.core.model.model_files import ModelFiles
from runner.engine.contract.choice import EngineName, choose_engine
from runner.engine.opening import EngineOptions, open_engine

pytestmark = pytest.mark.behaviour("B-150")


def test_a_model_that_generates_is_batched_unless_told_otherwise() -> None:
    choice = choose_engine(layout="", setting="", pools=False)
    assert (choice.name, choice.warning) == (EngineName.BATCHED, "")


def test_the_architecture_may_require_another_engine() -> None:
    assert choose_engine(layout="", setting="", pools=True).name is EngineName.POOLED


def test_the_setting_wins_over_the_default_and_the_layout_over_the_setting() -> None:
    assert choose_engine(layout="", setting="reference", pools=False).name is EngineName.REFERENCE
    assert choose_engine(layout="fake", setting="reference", pools=False).name is EngineName.FAKE


def test_a_fake_runs_whatever_the_model_is() -> None:
    assert choose_engine(layout="fake", setting="", pools=True).name is EngineName.FAKE


@pytest.mark.parametrize(
    ("asked", "pools", "used"),
    [
        ("batched", True, EngineName.POOLED),
        ("reference", True, EngineName.POOLED),
        ("pooled", False, EngineName.BATCHED),
    ],
)
def test_a_name_that_does_not_fit_the_model_gives_way_and_says_so(asked: str, pools: bool, used: EngineName) -> None:
    choice = choose_engine(layout=asked, setting="", pools=pools)
    assert choice.name is used
    assert f"{used} is used instead of {asked}" in choice.warning


@pytest.mark.parametrize(("layout", "setting"), [("warp", ""), ("", "warp"), ("batched", "warp")])
def test_an_unknown_name_is_refused_wherever_it_stands(layout: str, setting: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no engine 'warp'; there are batched, pooled, reference, fake"):
        choose_engine(layout=layout, setting=setting, pools=False)


def test_an_engine_of_tests_that_a_wheel_lacks_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tests.engines.fake", None)
    with pytest.raises(InvalidRequest, match="engine 'fake' is made for tests and not installed"):
        open_engine(ModelFiles(model=Path("none.gguf")), Layout(engine="fake"), EngineOptions(), None)

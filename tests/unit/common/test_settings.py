"""Settings are read strictly."""

import importlib
import pkgutil
from pathlib import Path

import pytest

import cli
import discovery
import gateway
import runner
import scheduler
from common.errors import StartupError
from common.settings import KNOWN_NAMES, PREFIX, PunaSettings

SERVICES = (cli, discovery, gateway, runner, scheduler)


def settings_classes() -> set[type[PunaSettings]]:
    """Every settings class of every service, and the base."""
    for service in SERVICES:
        for module in pkgutil.walk_packages(service.__path__, service.__name__ + "."):
            if module.name.endswith(".settings"):
                importlib.import_module(module.name)

    def below(kind: type[PunaSettings]) -> set[type[PunaSettings]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    return {kind for kind in below(PunaSettings) if kind.__module__.split(".")[0] != "tests"}


def test_the_known_names_are_those_of_the_settings_classes() -> None:
    fields = {PREFIX + field.upper() for kind in settings_classes() for field in kind.model_fields}
    assert fields == KNOWN_NAMES


def test_operators_find_every_setting_in_their_page() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "operators.md").read_text(encoding="utf-8")
    assert [name for name in sorted(KNOWN_NAMES) if name not in page] == []


def test_a_misspelt_name_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_DEBGU", "1")
    with pytest.raises(StartupError, match="unknown setting PUNA_DEBGU"):
        PunaSettings.load()


def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_DEBUG", "perhaps")
    with pytest.raises(StartupError, match="PUNA_DEBUG"):
        PunaSettings.load()

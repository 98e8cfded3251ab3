"""Settings are read strictly."""

import importlib
import os
import pkgutil

import pytest

import cli
import discovery
import gateway
import runner
import scheduler
from common.errors import StartupError
from common.ollama_environment import without_meaning
from common.settings import KNOWN_NAMES, PREFIX, PunaSettings
from gateway.settings import GatewaySettings
from tools.settings_table import DOCUMENT, EXAMPLE, document, example

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


def test_the_page_of_settings_and_the_example_are_those_of_the_code() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document()
    assert EXAMPLE.read_text(encoding="utf-8") == example()
    assert {name for name in KNOWN_NAMES if f"`{name}`" not in document()} == set()


def test_the_example_with_everything_switched_on_starts_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for line in example().splitlines():
        if line.startswith("#PUNA_"):
            name, _, value = line[1:].partition("=")
            if value:
                monkeypatch.setenv(name, value)
    for kind in settings_classes():
        kind.load()


def test_a_misspelt_name_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_DEBGU", "1")
    with pytest.raises(StartupError, match=r"unknown setting PUNA_DEBGU; did you mean PUNA_DEBUG\?"):
        PunaSettings.load()


def test_every_wrong_name_is_told_at_once_and_one_like_no_other_leads_to_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PUNA_HOMES", "x")
    monkeypatch.setenv("PUNA_XXXXXX", "1")
    with pytest.raises(StartupError) as failed:
        PunaSettings.load()
    assert str(failed.value) == (
        "unknown setting PUNA_HOMES; did you mean PUNA_HOME? unknown setting PUNA_XXXXXX; docs/settings.md lists all"
    )


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("0.0.0.0", "0.0.0.0:11434"),
        (":8080", "127.0.0.1:8080"),
        (" 'http://10.0.0.1' ", "10.0.0.1:80"),
        ("https://10.0.0.1:1", "10.0.0.1:1"),
        ("[::1]:5", "[::1]:5"),
    ],
)
def test_an_address_of_ollama_is_read_as_ollama_reads_it(
    monkeypatch: pytest.MonkeyPatch, given: str, host: str
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", given)
    assert GatewaySettings.load().host == host
    monkeypatch.setenv("PUNA_OLLAMA_ENV", "0")
    assert GatewaySettings.load().host == "127.0.0.1:11434"


def test_our_own_name_wins_and_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "7")
    monkeypatch.setenv("OLLAMA_DEBUG", "yes, please")
    settings = GatewaySettings.load()
    assert (settings.max_queue, settings.debug) == (7, True)
    assert "PUNA_MAX_QUEUE" not in os.environ
    monkeypatch.setenv("PUNA_MAX_QUEUE", "8")
    assert GatewaySettings.load().max_queue == 8


def test_a_bad_number_of_ollama_leaves_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MAX_QUEUE", "many")
    monkeypatch.setenv("OLLAMA_ORIGINS", "")
    assert GatewaySettings.load().max_queue == 512


def test_names_of_ollama_that_mean_nothing_are_known() -> None:
    assert without_meaning({"OLLAMA_NO_CLOUD": "1", "OLLAMA_HOST": "x"}) == ["OLLAMA_NO_CLOUD"]


def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_DEBUG", "perhaps")
    with pytest.raises(StartupError, match="PUNA_DEBUG"):
        PunaSettings.load()


def test_the_former_consent_stands_for_both_that_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_INSECURE", "1")
    assert GatewaySettings.load().plaintext
    assert GatewaySettings.load().open_gateway
    monkeypatch.setenv("PUNA_OPEN_GATEWAY", "0")
    assert not GatewaySettings.load().open_gateway
    assert "PUNA_PLAINTEXT" not in os.environ


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "127.8.8.8"])
def test_an_open_gateway_may_be_published_on_loopback(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PUNA_OPEN_GATEWAY", address)
    assert GatewaySettings.load().open_gateway


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "puna.example"])
def test_an_open_gateway_is_published_for_others_by_no_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("PUNA_OPEN_GATEWAY", address)
    with pytest.raises(
        StartupError, match=f"^PUNA_OPEN_GATEWAY: (?!Value error).*{address} can be reached from other machines"
    ):
        GatewaySettings.load()

from pathlib import Path

import pytest

from cli.settings import CliSettings
from common.effective_settings import HIDDEN, EffectiveSetting, Source, effective_settings
from common.settings import PunaSettings
from gateway.settings import GatewaySettings


def shown(settings: PunaSettings) -> dict[str, EffectiveSetting]:
    return {setting.name: setting for setting in effective_settings(settings)}


def test_every_setting_says_its_value_and_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_MAX_QUEUE", "7")
    monkeypatch.setenv("OLLAMA_HOST", "10.0.0.1")
    found = shown(GatewaySettings.load())
    assert (found["PUNA_MAX_QUEUE"].value, found["PUNA_MAX_QUEUE"].source) == ("7", Source.ENVIRONMENT)
    assert (found["PUNA_HOST"].value, found["PUNA_HOST"].variable) == ("10.0.0.1:11434", "OLLAMA_HOST")
    assert (found["PUNA_RESUME"].value, found["PUNA_RESUME"].source) == ("1", Source.DEFAULT)
    assert len(found) == len(GatewaySettings.model_fields)
    assert all(setting.text for setting in found.values())


def test_keys_and_passwords_are_not_shown_and_paths_are(monkeypatch: pytest.MonkeyPatch) -> None:
    canary = "hunter2"
    monkeypatch.setenv("PUNA_API_KEY", canary)
    monkeypatch.setenv("PUNA_REDIS_URL", f"redis://user:{canary}@redis:6379/0")
    monkeypatch.setenv("PUNA_TLS_KEY", "/etc/tls.key")
    command, gateway = shown(CliSettings.load()), shown(GatewaySettings.load())
    assert canary not in str(command) + str(gateway)
    assert command["PUNA_API_KEY"].value == HIDDEN
    assert gateway["PUNA_REDIS_URL"].value == f"redis://{HIDDEN}@redis:6379/0"
    assert gateway["PUNA_TLS_KEY"].value == str(Path("/etc/tls.key"))

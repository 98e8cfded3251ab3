"""The table of clients: each text is a valid file of its format, whatever the model and the key are."""

import ast
import json
import shlex
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cli.core.connect.client import ConnectClient, Format, Setting, Values, filled, output_tokens
from cli.core.connect.clients import CLIENTS, client_named

PARSERS: dict[Format, Callable[[str], Any]] = {
    Format.JSON: json.loads,
    Format.TOML: tomllib.loads,
    Format.YAML: yaml.safe_load,
    Format.PYTHON: ast.parse,
    Format.SHELL: shlex.split,
}
SETTINGS = [(client, setting) for client in CLIENTS.values() for setting in client.settings]
IDS = [f"{client.key}-{setting.title}" for client, setting in SETTINGS]
VALUES = Values(url="http://127.0.0.1:11434", model="hf.co/user/Model-GGUF:Q4_K_M", context=65536, output=8192)
KEYED = Values(url="https://puna.example", model="qwen3:8b", context=32768, output=4096, key="puna_k", tools=False)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


@pytest.mark.parametrize("values", [VALUES, KEYED], ids=["no key", "key"])
@pytest.mark.parametrize(("client", "setting"), SETTINGS, ids=IDS)
def test_a_filled_text_is_valid_and_has_no_placeholder(client: ConnectClient, setting: Setting, values: Values) -> None:
    text = filled(setting.text, values)
    assert "{{" not in text
    if setting.format in PARSERS:
        PARSERS[setting.format](text)


@pytest.mark.parametrize("values", [VALUES, KEYED], ids=["no key", "key"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
def test_a_client_learns_address_and_model(client: ConnectClient, values: Values) -> None:
    text = "".join(filled(setting.text, values) for setting in client.settings)
    assert values.url in text
    assert values.model in text or client.key == "open-webui"  # which lists what the server has
    assert ("PUNA_API_KEY" in text or "puna_k" in text) or not values.key


@pytest.mark.parametrize(("client", "setting"), SETTINGS, ids=IDS)
def test_contexts_are_numbers_where_the_client_reads_numbers(client: ConnectClient, setting: Setting) -> None:
    if setting.format not in (Format.JSON, Format.TOML, Format.YAML) or "{{context}}" not in setting.text:
        return
    found = leaves(PARSERS[setting.format](filled(setting.text, VALUES)))
    # Variables of the environment are strings by nature.
    assert ("65536" if client.key == "claude-code" else 65536) in found


def test_a_condition_keeps_or_drops_its_line() -> None:
    text = "{{?key}}a\n{{!key}}b\n{{?tools}}c\n{{!tools}}d\n{{key}}\n"
    assert filled(text, VALUES) == "b\nc\nunused\n"
    assert filled(text, KEYED) == "a\nd\npuna_k\n"


def test_an_answer_takes_at_most_a_quarter_of_the_context() -> None:
    client = CLIENTS["claude-code"]
    assert output_tokens(client, 65536) == 8192
    assert output_tokens(client, 4096) == 1024
    assert output_tokens(client, 1) == 1


def test_the_clients_of_the_promise_are_there() -> None:
    assert {
        "claude-code", "codex", "opencode", "aider", "continue", "cline", "roo-code", "qwen-code", "zed",
        "open-webui", "litellm", "langchain", "llamaindex", "ai-sdk",
    } == set(CLIENTS)  # fmt: skip
    assert all(client.key == key for key, client in CLIENTS.items())
    assert all(client.context_min <= client.context for client in CLIENTS.values())


@pytest.mark.parametrize("name", ["claude-code", "Claude Code", "claude_code", "claude"])
def test_a_client_is_found_by_the_spellings_that_people_use(name: str) -> None:
    assert client_named(name).key == "claude-code"


def test_an_unknown_client_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="unknown client 'codec'; did you mean codex"):
        client_named("codec")
    with pytest.raises(ValueError, match="`puna connect` lists the clients"):
        client_named("xyzzy")

"""A client's text is merged into the user's file, and nothing else of the file changes."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cli.core.connect.client import ConnectClient, Format, Setting, Values, filled
from cli.core.connect.clients import CLIENTS
from cli.core.connect.merging import Unmergeable, changes, merged

VALUES = Values(url="http://127.0.0.1:11434", model="qwen3:8b", context=65536, output=8192)
OTHER = Values(url="https://puna.example", model="demo", context=32768, output=4096, key="puna_k")
FILES = [(client, setting) for client in CLIENTS.values() for setting in client.settings if setting.file]
PARSERS: dict[Format, Callable[[str], Any]] = {
    Format.JSON: json.loads,
    Format.TOML: tomllib.loads,
    Format.YAML: yaml.safe_load,
}
# A file of each format that its user has made, with what a careless merge would lose.
EXISTING = {
    Format.JSON: '{\n\t"theme": "dark",\n\t"env": {"MINE": "1"},\n\t"model": null,\n\t"größe": [1, 2]\n}\n',
    Format.TOML: (
        '# mine\nmodel = "gpt"  # the usual one\napproval_policy = "never"\n\n'
        '[model_providers.other]\nname = "Other"\n\n'
        '# tools\n[mcp_servers.files]\ncommand = "files"\nargs = [\n  "[a]",\n]\n'
    ),
    Format.YAML: "# mine\nname: Mine\ndark-mode: true\nlists:\n- one\n- two\ntext: |\n  model: not this one\n",
}


def setting_of(key: str) -> Setting:
    return CLIENTS[key].settings[0]


def merge(key: str, existing: str | None, values: Values = VALUES) -> str:
    setting = setting_of(key)
    return merged(setting, filled(setting.text, values), existing)


def contains(whole: object, part: object) -> bool:
    """True if a parsed file says everything that another says."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(one, item) for one in whole) for item in part)
    return whole == part


@pytest.mark.parametrize(("client", "setting"), FILES, ids=[setting.title for _, setting in FILES])
@pytest.mark.parametrize("existing", [None, "", "mine"])
def test_a_merged_file_says_what_it_said_and_what_the_client_needs(
    client: ConnectClient, setting: Setting, existing: str | None
) -> None:
    parse = PARSERS[setting.format]
    before = EXISTING[setting.format] if existing == "mine" else existing
    after = merged(setting, filled(setting.text, VALUES), before)
    found = parse(after)
    assert contains(found, parse(filled(setting.text, VALUES)))
    if before:
        ours = parse(filled(setting.text, VALUES))
        kept = {key: value for key, value in parse(before).items() if key not in ours}
        assert kept
        assert contains(found, kept)
    else:
        assert contains(found, parse(setting.head) if setting.head else {})
    assert merged(setting, filled(setting.text, VALUES), after) == after


@pytest.mark.parametrize(("client", "setting"), FILES, ids=[setting.title for _, setting in FILES])
def test_another_address_and_model_replace_the_ones_before(client: ConnectClient, setting: Setting) -> None:
    first = merged(setting, filled(setting.text, VALUES), EXISTING[setting.format])
    second = merged(setting, filled(setting.text, OTHER), first)
    ours = PARSERS[setting.format](filled(setting.text, OTHER))
    assert contains(PARSERS[setting.format](second), ours)
    assert VALUES.url not in second or client.key in ("qwen-code", "aider")


def test_comments_and_order_of_toml_stay() -> None:
    after = merge("codex", EXISTING[Format.TOML])
    assert after.startswith('model_provider = "puna"\nmodel_context_window = 65536\n\n# mine\nmodel = "qwen3:8b"\n')
    assert '# tools\n[mcp_servers.files]\ncommand = "files"\nargs = [\n  "[a]",\n]\n' in after
    assert after.endswith("stream_idle_timeout_ms = 3000000\n")


def test_a_toml_table_of_ours_is_replaced_whole() -> None:
    before = merge("codex", "[a]\nb = 1\n", OTHER) + "\n# theirs\n[z]\ny = 2\n"
    after = merge("codex", before)
    assert "env_key" in before
    assert "env_key" not in after
    assert after.endswith("\n# theirs\n[z]\ny = 2\n")
    assert tomllib.loads(after)["a"] == {"b": 1}


@pytest.mark.parametrize(
    "existing",
    [
        "model = \n",
        'model = """\nmany\n"""\n',
        'model_providers = { puna = { name = "x" } }\n',
        "model_providers = 3\n",
        '[model_providers]\npuna.name = "x"\n',
    ],
)
def test_toml_of_another_form_is_not_touched(existing: str) -> None:
    with pytest.raises(Unmergeable):
        merge("codex", existing)


@pytest.mark.parametrize(
    ("existing", "why"),
    [
        ('{\n  // mine\n  "a": 1\n}', "comments"),
        ('{"a": 1,}', "comments"),
        ("[]", "object"),
        ('{"env": ["a"]}', "env is of another type"),
        ("\ufeff{}", "comments"),
    ],
)
def test_json_of_another_form_is_not_touched(existing: str, why: str) -> None:
    with pytest.raises(Unmergeable, match=why):
        merge("claude-code", existing)


def test_json_keeps_its_indentation() -> None:
    assert '\n    "theme": "dark"' in merge("claude-code", '{\n    "theme": "dark"\n}\n')
    assert '\n\t"theme": "dark"' in merge("claude-code", '{\n\t"theme": "dark"\n}\n')


def test_elements_of_json_lists_are_replaced_by_name() -> None:
    mine = {"id": "mine", "baseUrl": "https://elsewhere.example"}
    before = json.dumps({"modelProviders": {"openai": [{"id": "qwen3:8b", "baseUrl": "http://old"}, mine]}})
    (first, second) = json.loads(merge("qwen-code", before))["modelProviders"]["openai"]
    assert first["baseUrl"] == "http://127.0.0.1:11434/v1"
    assert second == mine


@pytest.mark.parametrize(
    "models",
    [
        "models:\n  - name: Mine\n    provider: ollama\n",
        "models:\n- name: Mine\n  provider: ollama\n",
        "models: # all\n\n      - name: Mine\n        provider: ollama\n",
    ],
)
def test_elements_of_yaml_lists_have_the_indentation_of_the_others(models: str) -> None:
    existing = f"name: Mine\n{models}rules:\n  - short\n"
    after = merge("continue", existing)
    found = yaml.safe_load(after)
    assert [model["name"] for model in found["models"]] == ["Puna qwen3:8b", "Mine"]
    assert found["rules"] == ["short"]
    assert found["name"] == "Mine"
    again = yaml.safe_load(merge("continue", after, OTHER))
    assert [model["name"] for model in again["models"]] == ["Puna demo", "Mine"]


def test_an_empty_yaml_list_gets_elements() -> None:
    assert len(yaml.safe_load(merge("continue", "name: a\nmodels: []\n"))["models"]) == 1
    assert len(yaml.safe_load(merge("continue", "name: a\nmodels:\n# none\n"))["models"]) == 1


@pytest.mark.parametrize(
    "existing",
    [
        "{name: a}\n",
        "name: a\nmodels: [{name: b}]\n",
        "name: a\nmodels:\n  one: two\n",
        "name: a\nmodels:\n\t- b\n",
        "name: a\n---\nname: b\n",
        "models:\nmodels:\n",
        "models:\n  # puna connect: begin\n  - name: x\n",
    ],
)
def test_yaml_of_another_form_is_not_touched(existing: str) -> None:
    with pytest.raises(Unmergeable):
        merge("continue", existing)


def test_a_yaml_scalar_of_several_lines_is_not_touched() -> None:
    with pytest.raises(Unmergeable, match="model has more than one line"):
        merge("aider", "model:\n  - a\n")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('"ANTHROPIC_AUTH_TOKEN": "sk-1", "a": 1', '"ANTHROPIC_AUTH_TOKEN": …, "a": 1'),
        ("openai-api-key: sk-1", "openai-api-key: …"),
        ('apiKey: "sk-1"', "apiKey: …"),
        ('experimental_bearer_token = "sk-1"', "experimental_bearer_token = …"),
        ('{"headers": {"Authorization": "Bearer sk-1"}}', '{"headers": {"Authorization": …}}'),
        ('"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192"', '"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192"'),
        ('"envKey": "PUNA_API_KEY"', '"envKey": "PUNA_API_KEY"'),
        ('env_key = "PUNA_API_KEY"', 'env_key = "PUNA_API_KEY"'),
    ],
)
def test_changes_show_what_differs_and_no_secret(line: str, shown: str) -> None:
    assert changes(f"a\n{line}\n", "a\nb\n") == ["@@ -1,2 +1,2 @@", " a", f"-{shown}", "+b"]
    assert changes(f"{line}\n", f"{line}\n") == []

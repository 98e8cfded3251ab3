"""`puna connect` against a cluster that asks for keys: what it checks, what it writes, what it changes."""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cli.core.connect.client import Format
from cli.core.connect.clients import CLIENTS
from cli.errors import ExitCode
from tests.integration.cli.place import Place
from tests.waiting import wait_until
from tools.model_zoo import build
from tools.model_zoo.catalogue import recipe_of

AGENT = "agent"
PARSERS: dict[Format, Callable[[str], Any]] = {
    Format.JSON: json.loads,
    Format.TOML: tomllib.loads,
    Format.YAML: yaml.safe_load,
}
WITH_FILES = [key for key, client in CLIENTS.items() if any(setting.file for setting in client.settings)]


def names_of(place: Place) -> set[str]:
    answer = httpx.get(place.cluster.url + "/api/tags", headers={"authorization": f"Bearer {place.key}"}, timeout=60)
    return {str(model["name"]) for model in answer.json()["models"]}


@pytest.fixture(scope="module")
def agent(place: Place) -> Iterator[str]:
    """A model with tools and a long context, loaded with a short one by default."""
    path = build(replace(recipe_of("dense"), name=AGENT, context_tokens=131072), place.cluster.models)
    wait_until(lambda: f"{AGENT}:latest" in names_of(place), deadline_s=60, what="the model is listed")
    yield AGENT
    place.puna("placements", AGENT, "--forget")
    path.unlink()
    wait_until(lambda: f"{AGENT}:latest" not in names_of(place), deadline_s=60, what="the model is gone")


def finding(answer: Any, area: str) -> dict[str, str]:
    (found,) = [one for one in answer["findings"] if one["area"] == area]
    return dict(found)


def test_the_demo_model_is_too_small_for_an_agent(place: Place) -> None:
    done = place.puna("connect", "claude-code", "--model", "demo")
    assert done.returncode == ExitCode.FAILED
    assert "demo was trained for 2048 tokens, Claude Code needs 49152" in done.stdout
    assert "choose a model with a longer context" in done.stdout
    assert f'"ANTHROPIC_BASE_URL": "{place.cluster.url}"' in done.stdout
    assert place.key not in done.stdout
    assert done.stderr == "puna: 1 failed\n"


def test_a_context_that_is_too_small_is_named_and_then_made_larger(place: Place, agent: str) -> None:
    assert place.puna("load", agent).returncode == 0  # with the 1,024 tokens of this cluster
    before = place.json("connect", "codex", "--model", agent)
    assert finding(before, "context")["level"] == "fail"
    assert finding(before, "context")["text"].startswith("requests get 1024 tokens, Codex needs 32768")
    assert (
        f"`puna placements {agent} num_ctx=65536`, then `puna load {agent} --num-ctx 65536`"
        in (finding(before, "context")["advice"])
    )
    assert "model_context_window = 65536" in before["settings"][0]["text"]
    place.puna("placements", agent, "priority=2")
    done = place.puna("connect", "codex", "--model", agent, "--fix")
    assert done.returncode == 0, done.stderr
    assert f"replicas of {agent} are loaded with num_ctx 65536 from now on" in done.stdout
    assert "requests get 65536 tokens; Codex needs 32768" in done.stdout
    assert place.json("placements", agent)["constraints"] == {"num_ctx": 65536, "priority": 2}
    (loaded,) = [one for one in place.json("ps")["models"] if one["name"] == f"{agent}:latest"]
    assert loaded["context_length"] == 65536


@pytest.mark.parametrize("key", WITH_FILES)
def test_files_are_written_once_and_say_where_the_server_is(
    place: Place, agent: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable, _ in (moved for setting in CLIENTS[key].settings for moved in setting.moved_by):
        monkeypatch.delenv(variable, raising=False)
    answer = place.json("connect", key, "--model", agent, "--write", HOME=str(tmp_path))
    for setting in answer["settings"]:
        if setting["path"] is None:
            continue
        path = tmp_path / setting["path"]
        assert setting["written"]
        text = path.read_text()
        assert PARSERS[Format(setting["format"])](text)
        assert agent in text
        assert place.key not in setting["text"]
        assert place.key not in text or path.stat().st_mode & 0o077 == 0
    again = place.puna("connect", key, "--model", agent, "--write", HOME=str(tmp_path))
    assert "nothing to change" in again.stdout
    assert ": written" not in again.stdout
    assert place.key not in again.stdout


def test_a_file_with_comments_is_printed_and_not_changed(place: Place, agent: str, tmp_path: Path) -> None:
    path = tmp_path / ".config" / "zed" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n{}\n")
    done = place.puna("connect", "zed", "--model", agent, "--write", HOME=str(tmp_path), XDG_CONFIG_HOME="")
    assert done.returncode == ExitCode.FAILED
    assert "has comments, or is not JSON; not changed" in done.stderr
    assert "~/.config/zed/settings.json (not written):" in done.stdout
    assert path.read_text() == "// mine\n{}\n"


def test_without_a_model_the_first_that_suits_is_taken(place: Place, agent: str) -> None:
    assert place.json("connect", "aider")["model"] == agent


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "line"),
    [
        (["claud"], {}, ExitCode.USAGE, "puna: unknown client 'claud'; did you mean claude-code?\n"),
        (["codex", "--model", "demmo"], {}, ExitCode.NOT_FOUND, "puna: model 'demmo' not found; did you mean demo?\n"),
        (["codex"], {"PUNA_HOST": "127.0.0.1:9"}, ExitCode.UNREACHABLE, None),
        (["codex"], {"PUNA_API_KEY": "puna_wrong"}, ExitCode.REFUSED, None),
        (["codex", "--model", "demo", "--write"], {"HOME": ""}, ExitCode.USAGE, None),
    ],
    ids=["client", "model", "server", "key", "home"],
)
def test_bad_input_is_one_line_and_a_status(
    place: Place, arguments: list[str], environment: dict[str, str], code: ExitCode, line: str | None
) -> None:
    done = place.puna("connect", *arguments, **environment)
    assert done.returncode == code
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert line is None or done.stderr == line


def test_a_key_that_may_not_ask_is_named(place: Place) -> None:
    answer = place.json("connect", "aider", "--model", "demo", PUNA_API_KEY=place.reader)
    assert finding(answer, "key")["level"] == "fail"
    assert "lacks the scope infer" in finding(answer, "key")["text"]


def test_options_without_a_client_are_refused(place: Place) -> None:
    assert place.puna("connect", "--write").returncode == ExitCode.USAGE
    assert "claude-code" in place.puna("connect").stdout
    assert {one["client"] for one in place.json("connect")["clients"]} == set(CLIENTS)

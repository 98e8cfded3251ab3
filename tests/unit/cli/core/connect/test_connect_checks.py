"""Checks of a key and a model for a client, from the server's answers."""

from dataclasses import replace
from typing import Any

import pytest

from cli.core.connect.checks import (
    Fit,
    ServedModel,
    check_context,
    check_key,
    check_model,
    check_trust,
    model_facts,
    needs_more,
    placed_where,
    trial_contexts,
    wanted_context,
)
from cli.core.connect.clients import CLIENTS
from cli.core.doctor.findings import Finding, Level

CLAUDE = CLIENTS["claude-code"]
FACTS = ServedModel(
    name="qwen3",
    trained=262144,
    capabilities=frozenset({"completion", "tools", "thinking"}),
    own=0,
    replicas=(),
    chosen=4096,
    refusal="",
    flaw="",
)
SHOWN: dict[str, Any] = {
    "model_info": {"general.architecture": "llama", "llama.context_length": 32768},
    "capabilities": ["completion", "tools"],
    "parameters": "temperature 0.5\nnum_ctx 8192\nstop a",
    "puna": {"template_flaw": None},
}


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_facts_are_read_from_the_server_s_answers() -> None:
    explained = {"outcome": "placed", "layout": {"context_length": 4096}}
    facts = model_facts(SHOWN, [{"context_length": 2048}, {"context_length": 0}], explained, name="m")
    assert (facts.trained, facts.own, facts.replicas, facts.chosen) == (32768, 8192, (2048,), 4096)
    assert facts.capabilities == {"completion", "tools"}
    assert facts.refusal == ""
    refused = model_facts(SHOWN, [], {"outcome": "busy", "message": "no room", "layout": None}, name="m")
    assert refused.refusal == "no room"


@pytest.mark.parametrize(
    ("facts", "tokens"),
    [
        (FACTS, 4096),
        (replace(FACTS, replicas=(65536, 32768)), 32768),
        (replace(FACTS, replicas=(65536,), own=8192), 8192),
        (replace(FACTS, own=999999), 262144),
    ],
    ids=["what a load would choose", "the smallest replica", "its Modelfile", "as far as it was trained"],
)
def test_a_request_gets_the_context_of(facts: ServedModel, tokens: int) -> None:
    assert facts.context == tokens


def test_an_agent_in_the_default_context_fails_and_the_command_is_named() -> None:
    finding = only(list(check_context(CLAUDE, FACTS, Fit(tokens=65536, where="node-a (GPU-0)"))))
    assert finding.level is Level.FAIL
    assert finding.text == "requests get 4096 tokens, Claude Code needs 49152, better 65536"
    assert finding.advice == ("65536 fits, on node-a (GPU-0): `puna placements qwen3 num_ctx=65536`; or use --fix")
    assert needs_more(CLAUDE, FACTS)


def test_a_loaded_replica_that_is_smaller_is_to_be_replaced() -> None:
    facts = replace(FACTS, replicas=(4096,))
    finding = only(list(check_context(CLAUDE, facts, Fit(tokens=65536, where=""))))
    assert "num_ctx=65536`, then `puna load qwen3 --num-ctx 65536`" in finding.advice


def test_the_most_that_fits_is_offered() -> None:
    facts = replace(FACTS, chosen=49152)
    finding = only(list(check_context(CLAUDE, facts, Fit(tokens=57344, where="node-a (GPU-0)"))))
    assert finding.level is Level.WARN
    assert finding.advice.startswith("57344 is the most that fits instead of 65536, on node-a (GPU-0): ")
    nothing = only(list(check_context(CLAUDE, FACTS, Fit(tokens=0, where=""))))
    assert nothing.level is Level.FAIL
    assert nothing.advice.startswith("the cluster cannot hold more: `puna explain qwen3 --num-ctx 65536`")


def test_a_model_of_a_short_context_is_refused_without_false_hope() -> None:
    finding = only(list(check_context(CLAUDE, replace(FACTS, trained=2048, chosen=2048), None)))
    assert finding.level is Level.FAIL
    assert finding.text == "qwen3 was trained for 2048 tokens, Claude Code needs 49152"
    assert "choose a model" in finding.advice


def test_a_modelfile_that_sets_the_context_is_named() -> None:
    finding = only(list(check_context(CLAUDE, replace(FACTS, own=8192), None)))
    assert finding.advice.startswith("its Modelfile sets num_ctx 8192: make another model of it")


def test_enough_is_enough() -> None:
    for facts in (replace(FACTS, chosen=65536), replace(FACTS, trained=50000, replicas=(50000,))):
        assert only(list(check_context(CLAUDE, facts, None))).level is Level.OK
        assert not needs_more(CLAUDE, facts)
    library = CLIENTS["langchain"]
    assert only(list(check_context(library, FACTS, None))).text == "requests get 4096 tokens"
    assert not needs_more(library, FACTS)


def test_a_model_that_cannot_be_loaded_is_named() -> None:
    finding = only(list(check_context(CLAUDE, replace(FACTS, chosen=0, refusal="no room"), None)))
    assert (finding.level, finding.text) == (Level.FAIL, "qwen3 cannot be loaded: no room")


def test_capabilities_are_compared_with_what_the_client_needs() -> None:
    no_tools = replace(FACTS, capabilities=frozenset({"completion"}))
    assert only(list(check_model(CLAUDE, no_tools))).text == "qwen3 takes no tools, and Claude Code works with tools"
    assert only(list(check_model(CLIENTS["aider"], no_tools))).level is Level.OK
    vectors = replace(FACTS, capabilities=frozenset({"embedding"}))
    assert only(list(check_model(CLAUDE, vectors))).text == "qwen3 gives vectors, not answers"
    flawed = list(check_model(CLAUDE, replace(FACTS, flaw="drops tools")))
    assert [one.level for one in flawed] == [Level.OK, Level.WARN]


def test_the_key_must_be_good_for_questions() -> None:
    assert only(list(check_key({"keys": False}, has_key=False))).text == "the gateway asks for none"
    good = {"keys": True, "key": "ada", "scopes": ["infer"]}
    assert only(list(check_key(good, has_key=True))).level is Level.OK
    poor = only(list(check_key({**good, "scopes": ["models:read"]}, has_key=True)))
    assert (poor.level, poor.text) == (Level.FAIL, "ada lacks the scope infer")


def test_certificates_of_an_own_authority_are_named_to_the_client() -> None:
    assert only(list(check_trust("https://puna.example", "/ca.pem"))).level is Level.WARN
    assert only(list(check_trust("https://puna.example", ""))).level is Level.OK
    assert only(list(check_trust("http://127.0.0.1:1", "/ca.pem"))).level is Level.OK


def test_contexts_are_tried_from_the_wanted_one_down() -> None:
    assert trial_contexts(65536, 16384) == [65536, 49152, 32768, 24576]
    assert trial_contexts(50000, 50000) == [50000]
    assert len(trial_contexts(1 << 30, 4)) < 64


def test_the_wanted_context_is_within_what_the_model_was_trained_for() -> None:
    assert wanted_context(CLAUDE, replace(FACTS, trained=50000)) == 50000
    assert wanted_context(CLAUDE, replace(FACTS, trained=0)) == 65536


def test_the_chosen_candidate_is_named() -> None:
    devices = [{"id": "0", "name": "CUDA0"}, {"id": "1"}]
    candidates = [{"node": "a", "verdict": "short"}, {"node": "b", "verdict": "chosen", "devices": devices}]
    assert placed_where({"candidates": candidates}) == "b (CUDA0, 1)"
    assert placed_where({}) == ""

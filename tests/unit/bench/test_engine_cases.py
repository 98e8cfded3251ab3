import pytest

from bench.engine.cases import Case, asks, choose_plans, embedding_inputs, server_order

CASE = Case(name="case", streams=3, prompt_tokens=10, shared_tokens=6, tokens=4)


def test_both_servers_are_first_in_turn() -> None:
    assert [server_order(number, ("a", "b"))[0] for number in range(4)] == ["a", "b", "a", "b"]


def test_a_round_is_the_same_for_both_servers_and_new_to_them() -> None:
    first = asks(CASE, round_number=1, vocabulary_size=1000)

    assert first == asks(CASE, round_number=1, vocabulary_size=1000)
    assert first[0].prompt[:6] != asks(CASE, round_number=2, vocabulary_size=1000)[0].prompt[:6]


def test_streams_share_the_beginning_that_the_case_says_and_no_more() -> None:
    prompts = [ask.prompt for ask in asks(CASE, round_number=1, vocabulary_size=1000)]

    assert {len(prompt) for prompt in prompts} == {10}
    assert len({prompt[:6] for prompt in prompts}) == 1
    assert len({prompt[6:] for prompt in prompts}) == 3


def test_embedding_inputs_are_framed() -> None:
    inputs = embedding_inputs(CASE, round_number=0, vocabulary_size=1000, begin=2, end=3)

    assert {(len(tokens), tokens[0], tokens[-1]) for tokens in inputs} == {(10, 2, 3)}


def test_models_and_cases_are_chosen_by_name() -> None:
    (plan,) = choose_plans(["57m"], ["streams-4", "load"])

    assert [case.name for case in plan.cases] == ["load", "streams-4"]
    assert choose_plans(["22m-embed"], ["load"]) == []
    with pytest.raises(LookupError, match="no model"):
        choose_plans(["9b"], [])
    with pytest.raises(LookupError, match="no case"):
        choose_plans(["57m"], ["streams-5"])

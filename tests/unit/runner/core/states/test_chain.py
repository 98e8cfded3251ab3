"""Names of prompt beginnings."""

from runner.core.states.chain import BLOCK_INPUTS, chain, name_space, state_key

SPACE = name_space({"engine": "1", "cache_types": "f16/f16"})
INPUTS = list(range(300, 300 + 3 * BLOCK_INPUTS + 10))


def test_equal_beginnings_have_equal_links_up_to_the_first_difference() -> None:
    other = [*INPUTS[: BLOCK_INPUTS + 5], 7, *INPUTS[BLOCK_INPUTS + 6 :]]
    left, right = chain(SPACE, "", INPUTS), chain(SPACE, "", other)
    assert len(left) == 3
    assert left[0] == right[0]
    assert not set(left[1:]) & set(right[1:])


def test_salt_and_space_change_every_link() -> None:
    links = chain(SPACE, "a", INPUTS)
    assert not set(links) & set(chain(SPACE, "b", INPUTS))
    for facts in ({"engine": "2", "cache_types": "f16/f16"}, {"engine": "1", "cache_types": "q8_0/q8_0"}):
        assert not set(links) & set(chain(name_space(facts), "a", INPUTS))


def test_keys_differ_by_the_inputs_behind_the_last_block() -> None:
    links = chain(SPACE, "", INPUTS)
    keys = {state_key(links, inputs) for inputs in (INPUTS, INPUTS[:-1], [*INPUTS[:-1], 1], [*INPUTS[:-1], -(2**90)])}
    assert len(keys) == 4


def test_rows_of_images_are_inputs_of_their_own() -> None:
    block = INPUTS[:BLOCK_INPUTS]
    rows = [*block[:-1], -(2**200) - 5]
    assert chain(SPACE, "", block) != chain(SPACE, "", rows) != chain(SPACE, "", [*block[:-1], -(2**200) - 6])


def test_less_than_a_block_has_no_name() -> None:
    assert chain(SPACE, "", INPUTS[: BLOCK_INPUTS - 1]) == ()

"""Finding a saved state by what a prompt begins with."""

from runner.core.states.catalogue import Catalogue, StateEntry
from runner.core.states.chain import BLOCK_INPUTS
from runner.core.states.gate import Tier


def entry(key: str, *links: bytes, size: int = 10) -> StateEntry:
    return StateEntry(
        key=key, links=links, inputs=len(links) * BLOCK_INPUTS, size_bytes=size, tier=Tier.RAM, saved_s=1.0
    )


def test_the_longest_common_beginning_wins_and_the_smallest_of_several() -> None:
    known = Catalogue()
    for one in (entry("short", b"a"), entry("long", b"a", b"b", b"c", size=30), entry("fork", b"a", b"b", size=20)):
        known.put(one)
    found = known.find([b"a", b"b", b"x"])
    assert found is not None
    assert (found[0].key, found[1]) == ("fork", 2 * BLOCK_INPUTS)
    assert known.find([b"x"]) is None


def test_what_is_removed_is_not_found() -> None:
    known = Catalogue()
    known.put(entry("one", b"a", b"b"))
    known.put(entry("two", b"a"))
    known.remove("one")
    known.remove("unknown")
    found = known.find([b"a", b"b"])
    assert found is not None
    assert found[0].key == "two"
    known.clear()
    assert len(known) == 0
    assert known.find([b"a"]) is None

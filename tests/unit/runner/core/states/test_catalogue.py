"""Finding a saved state by what a prompt begins with."""

import base64
from dataclasses import replace

import pytest

from runner.core.states import messages
from runner.core.states.catalogue import Catalogue, StateEntry
from runner.core.states.chain import BLOCK_INPUTS, BLOCKS_MAX
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


def test_the_names_of_a_state_survive_a_message_and_an_earlier_record_has_none() -> None:
    named = replace(entry("0" * 32, b"a" * 16), names=(1, 2**64 - 1))
    fields = messages.entry_fields(named)
    assert messages.read_entry(fields, tier=Tier.RAM) == named
    del fields["names"]
    assert messages.read_entry(fields, tier=Tier.RAM).names == ()


@pytest.mark.parametrize(
    "names", ["?", base64.b64encode(b"x" * 9).decode(), base64.b64encode(bytes(8 * 2049)).decode(), 7]
)
def test_names_that_are_none_are_refused(names: object) -> None:
    fields = messages.entry_fields(entry("0" * 32, b"a" * 16)) | {"names": names}
    with pytest.raises(messages.BadMessage):
        messages.read_entry(fields, tier=Tier.RAM)


def test_links_of_another_node_are_whole_hashes_and_no_more_than_a_state_has() -> None:
    assert messages.parted(b"a" * 16 + b"b" * 16) == (b"a" * 16, b"b" * 16)
    for links in (b"a" * 17, bytes(16 * (BLOCKS_MAX + 1))):
        with pytest.raises(messages.BadMessage):
            messages.parted(links)

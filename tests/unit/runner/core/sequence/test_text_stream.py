"""Release of generated text that may be part of a stop string."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.sequence.endings import END_TOKEN, LENGTH, Ending, EndReason
from runner.core.sequence.logprobs import TokenLogprobs
from runner.core.sequence.text_stream import (
    Release,
    TextStream,
    TextToken,
    check_stop_strings,
    find_stop,
    incomplete_tail_bytes,
    partial_stop_bytes,
)


def run(pieces: list[bytes], *, stops: list[str], last: Ending | None = None) -> tuple[list[Release], TextStream]:
    """Push the pieces; the last one comes with an ending."""
    stream = TextStream(check_stop_strings(stops))
    releases = []
    for index, piece in enumerate(pieces):
        ending = last if index == len(pieces) - 1 else None
        releases.append(stream.push(TextToken(index, piece), ending))
        if stream.ended:
            break
    return releases, stream


def text(releases: list[Release]) -> str:
    return "".join(release.text for release in releases)


def ids(releases: list[Release]) -> list[int]:
    return [token.token_id for release in releases for token in release.tokens]


def test_plain_text_leaves_at_once() -> None:
    releases, stream = run([b"Hello", b" world"], stops=[])
    assert [release.text for release in releases] == ["Hello", " world"]
    assert (stream.counted, stream.delivered) == (2, 2)


@pytest.mark.behaviour("B-114")
@pytest.mark.parametrize(
    ("pieces", "ending", "expected_text", "expected_ids", "reason"),
    [
        # The end token is counted, its piece is never sent; what was held is.
        ([b"a", b"<e", b"EOS"], END_TOKEN, "a<e", [0, 1], EndReason.END_TOKEN),
        # An end token whose piece would complete a stop string ends as an end token.
        ([b"a", b"<e", b"nd>"], END_TOKEN, "a<e", [0, 1], EndReason.END_TOKEN),
        # A stop string that the last allowed token completes wins over the limit.
        ([b"a", b"<e", b"nd>"], LENGTH, "a", [0], EndReason.STOP_STRING),
        # The limit flushes what could still have become a stop string.
        ([b"a", b"<e"], LENGTH, "a<e", [0, 1], EndReason.LENGTH),
        # The limit flushes half a character.
        ([b"a", b"\xc3"], LENGTH, "a\ufffd", [0, 1], EndReason.LENGTH),
        # A stop string in the middle of one piece.
        ([b"ab<end>cd"], None, "ab", [], EndReason.STOP_STRING),
        # A stop string right behind half a character.
        ([b"\xc3", b"<end>"], None, "\ufffd", [0], EndReason.STOP_STRING),
        # Stop string and incomplete character at once: nothing leaves.
        ([b"a", b"<", b"\xe2"], None, "a<", [0, 1], None),
    ],
)
def test_events_that_coincide_are_decided_in_this_order(
    pieces: list[bytes], ending: Ending | None, expected_text: str, expected_ids: list[int], reason: EndReason | None
) -> None:
    releases, stream = run(pieces, stops=["<end>"], last=ending)
    assert text(releases) == expected_text
    assert ids(releases) == expected_ids
    last = releases[-1].ending
    assert (last.reason if last is not None else None) == reason
    assert stream.counted == len(pieces)


@pytest.mark.behaviour("B-115")
def test_the_earliest_match_of_any_stop_string_counts() -> None:
    releases, stream = run([b"abc"], stops=["c", "b"])
    assert text(releases) == "a"
    assert releases[-1].ending == Ending(EndReason.STOP_STRING, stop_string="b")
    assert stream.delivered == 0


@pytest.mark.behaviour("B-115")
def test_empty_stop_strings_are_ignored() -> None:
    releases, stream = run([b"abc"], stops=["", ""])
    assert text(releases) == "abc"
    assert not stream.ended


@pytest.mark.behaviour("B-115")
def test_a_token_that_is_cut_in_two_is_not_delivered() -> None:
    releases, stream = run([b"one", b" two STOP", b"x"], stops=["STOP"])
    assert text(releases) == "one two "
    assert ids(releases) == [0]
    assert stream.delivered == 1
    assert stream.counted == 2


@pytest.mark.behaviour("B-112")
def test_logprobs_are_held_and_cut_with_their_text() -> None:
    stream = TextStream(check_stop_strings(["xyz"]))
    logprobs = TokenLogprobs(-0.5, ())
    sent = [
        stream.push(TextToken(index, piece, logprobs), None) for index, piece in enumerate([b"a", b"x", b"y", b"z"])
    ]
    assert [len(release.tokens) for release in sent] == [1, 0, 0, 0]
    assert sent[-1].ending is not None


@pytest.mark.behaviour("B-112")
def test_a_stop_string_that_does_not_come_lets_tokens_and_logprobs_go() -> None:
    releases, _ = run([b"a", b"x", b"y", b"!"], stops=["xyz"])
    assert [release.text for release in releases] == ["a", "", "", "xy!"]
    assert ids(releases) == [0, 1, 2, 3]


def test_only_whole_tokens_leave() -> None:
    releases, _ = run([b"ab<", b"no"], stops=["<end>"])
    assert [release.text for release in releases] == ["", "ab<no"]


@pytest.mark.behaviour("B-116")
def test_half_a_character_waits_for_the_other_half() -> None:
    releases, _ = run([b"caf\xc3", b"\xa9!"], stops=[])
    assert [release.text for release in releases] == ["", "café!"]


@pytest.mark.behaviour("B-116")
def test_valid_text_behind_an_invalid_byte_is_not_lost() -> None:
    releases, _ = run([b"\xffok", b"\x80go"], stops=[])
    assert text(releases) == "\ufffdok\ufffdgo"


@pytest.mark.behaviour("B-116")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0),
        (b"\xc3", 1),
        (b"\xc3\xa9", 0),
        (b"\xe2\x82", 2),
        (b"\xe2", 1),
        (b"\xf0\x9f\x98", 3),
        (b"\xf0\x9f\x98\x80", 0),
        (b"\x80", 0),
        (b"\x80\x80\x80", 0),
        (b"\xff", 0),
        (b"\xc0", 0),
        (b"\xe0\x80", 0),  # overlong: no byte can complete it
        (b"\xed\xa0", 0),  # a surrogate
        (b"\xf4\x90", 0),  # above U+10FFFF
        (b"\xf5", 0),
    ],
)
def test_only_tails_that_can_become_a_character_are_held(data: bytes, expected: int) -> None:
    assert incomplete_tail_bytes(data) == expected


@pytest.mark.behaviour("B-116")
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=12))
def test_however_bytes_are_split_the_text_is_that_of_the_whole(data: bytes, cuts: list[int]) -> None:
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:stop] for start, stop in itertools.pairwise(bounds)]
    releases, stream = run(pieces, stops=[])
    if not stream.ended:
        releases.append(stream.finish(LENGTH))
    assert text(releases) == data.decode("utf-8", "replace")
    assert ids(releases) == list(range(len(pieces)))


@given(
    st.text("ab<>", max_size=30),
    st.lists(st.integers(0, 30), max_size=10),
    st.lists(st.text("ab<>", max_size=3), max_size=3),
)
@pytest.mark.behaviour("B-115")
def test_the_text_always_ends_before_the_first_stop_string(whole: str, cuts: list[int], stops: list[str]) -> None:
    data = whole.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:stop] for start, stop in itertools.pairwise(bounds)]
    releases, stream = run(pieces, stops=stops)
    if not stream.ended:
        releases.append(stream.finish(LENGTH))
    # Pushed piece by piece, the stop string that is complete first ends the text.
    shortest = whole
    for stop in bounds[1:]:
        found = [offset for item in stops if item and (offset := whole[:stop].find(item)) >= 0]
        if found:
            shortest = whole[: min(found)]
            break
    assert text(releases) == shortest


def test_partial_stops_are_the_longest_beginning_at_the_end() -> None:
    assert partial_stop_bytes(b"abc<e", (b"<end>", b"c<ex")) == 3
    assert partial_stop_bytes(b"abc", (b"<end>",)) == 0
    assert partial_stop_bytes(b"<end>", (b"<end>",)) == 0


def test_matches_at_the_same_place_count_as_the_first_in_the_list() -> None:
    assert find_stop(b"xab", (b"ab", b"a")) == (1, b"ab")
    assert find_stop(b"xab", (b"a", b"ab")) == (1, b"a")
    assert find_stop(b"x", (b"a",)) is None


def test_too_many_or_too_long_stop_strings_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 64"):
        check_stop_strings([str(index) for index in range(65)])
    with pytest.raises(InvalidRequest, match="4096 bytes"):
        check_stop_strings(["x" * 4097])


@pytest.mark.behaviour("B-116")
def test_a_character_in_two_tokens_waits_for_neither_half_of_a_stop_string_alone() -> None:
    """A possible stop string begins behind it, so a boundary lies inside the character."""
    releases, _ = run([b"\xe2\x82", b"\xac<", b"no"], stops=["<end>"])
    assert [release.text for release in releases] == ["", "", "€<no"]


@pytest.mark.behaviour("B-116")
def test_text_behind_half_a_character_stays_behind_it() -> None:
    releases, _ = run([b"\xc3", b"a", b"b"], stops=[])
    assert text(releases) == "\ufffdab"
    assert ids(releases) == [0, 1, 2]


@given(
    st.lists(st.sampled_from(["é", "€", "😀", "<", "end>", "a", " "]), max_size=12),
    st.lists(st.integers(0, 40), max_size=12),
)
@pytest.mark.behaviour("B-115", "B-116")
def test_no_split_breaks_a_character_beside_a_stop_string(parts: list[str], cuts: list[int]) -> None:
    whole = "".join(parts)
    data = whole.encode()
    bounds = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    releases, stream = run([data[start:stop] for start, stop in itertools.pairwise(bounds)], stops=["<end>"])
    if not stream.ended:
        releases.append(stream.finish(LENGTH))
    assert text(releases) == whole.partition("<end>")[0]


def test_tokens_of_another_runner_count_as_generated_and_delivered() -> None:
    stream = TextStream((), resumed=7)
    assert (stream.counted, stream.delivered) == (7, 7)
    stream.push(TextToken(1, b"a"), None)
    assert (stream.counted, stream.delivered) == (8, 8)

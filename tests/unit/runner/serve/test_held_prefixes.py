"""Names of what a runner holds: of its sequences, and as it reports them."""

from hypothesis import given
from hypothesis import strategies as st

from common.spec.prompt_names import BLOCK_BYTES, NAMES_MAX, name_prompt
from protos import cluster_pb2
from runner.core.sequence.sequence_names import SequenceNames
from runner.engine.contract.engine import ParkedPrefix
from runner.serve.held_prefixes import HeldPrefixes, RestorableState

PIECES = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=400)


def names_of(text: bytes) -> list[int]:
    return name_prompt([text], salt="t").names


def sequence(text: bytes) -> SequenceNames:
    return SequenceNames([text], salt="t", pieces=None, inputs=1)


def told(held: cluster_pb2.HeldPrefixes) -> list[tuple[str, list[int], int]]:
    return [(one.tier, list(one.names), one.restore_ms) for one in held.saved]


@given(PIECES, PIECES, st.booleans())
def test_the_names_of_some_inputs_are_exact_at_blocks(prompt: list[bytes], answer: list[bytes], adds: bool) -> None:
    text = b"".join(prompt)
    pieces = [b"<s>", *prompt] if adds else prompt
    names = SequenceNames([text], salt="t", pieces=pieces, inputs=len(pieces))
    for count, piece in enumerate(answer, start=1):
        names.add(piece, inputs=len(pieces) + count)
    whole, every = text + b"".join(answer), names.all()
    assert every == (*names_of(text), *names_of(whole)[len(text) // BLOCK_BYTES :])[: len(every)]
    for inputs in range(len(pieces) + len(answer) + 1):
        held = len(b"".join([*pieces, *answer][:inputs]))
        found = set(names.within(inputs))
        blocks = names_of(whole[: held // BLOCK_BYTES * BLOCK_BYTES])
        assert found <= {*blocks, *names_of(text)} if inputs >= len(pieces) else found <= set(blocks)
        missing = 3 * adds + 9  # the begin token, and the input that crosses the end of a block
        assert found >= set(names_of(whole[: max(0, held - missing) // BLOCK_BYTES * BLOCK_BYTES]))


def test_images_and_ids_have_names_only_as_a_whole() -> None:
    names = SequenceNames([b"x" * 600], salt="t", pieces=None, inputs=40)
    assert (names.within(39), len(names.within(40))) == ((), 3)


def test_each_name_is_told_once_for_the_slots_and_each_tier_and_once_for_each_change() -> None:
    held, shared = HeldPrefixes(), cluster_pb2.RunnerStatus(slots_total=2)
    one, two = b"a" * BLOCK_BYTES + b"1", b"a" * BLOCK_BYTES + b"2"
    (start, first), (_, second) = names_of(one), names_of(two)
    for number, text in enumerate((one, two)):
        held.note(number, sequence(text))
    assert held.see((0, 1), (), inside=[1])
    assert not held.see((0, 1), (), inside=[])
    assert list(held.completed(shared, known_version=-1).held_prefixes.names) == [start, second, first]
    known = held.version
    assert not held.completed(shared, known_version=known).HasField("held_prefixes")
    held.saved = lambda: [RestorableState((start, first), 2.0, "ram"), RestorableState((start, second), 3.0, "disk")]
    assert held.see((1,), (ParkedPrefix(0, 0.25),), inside=[])
    report = held.completed(shared, known_version=known).held_prefixes
    assert list(report.names) == [start, second]
    assert told(report) == [
        ("parked", [start, first], 250),
        ("ram", [start, first], 2000),
        ("disk", [start, second], 3000),
    ]
    assert held.see((1,), (), inside=[])
    assert held.see((1,), (ParkedPrefix(0, 0.25),), inside=[])
    assert told(held.tell())[0][0] == "ram", "what had left is forgotten"


def test_a_complete_answer_is_news() -> None:
    held = HeldPrefixes()
    names = sequence(b"a" * BLOCK_BYTES)
    held.note(1, names)
    held.see((1,), (), inside=[1])
    names.add(b"b" * BLOCK_BYTES, inputs=2)
    assert held.see((1,), (), inside=[], has_ended=True)
    assert list(held.tell().names) == names_of(b"a" * BLOCK_BYTES + b"b" * BLOCK_BYTES)


def test_a_bounded_number_of_names_is_told_of_each_tier_the_newest_first() -> None:
    held = HeldPrefixes()
    states = [tuple(range(start, start + 100)) for start in range(0, 10_000, 100)]
    held.saved = lambda: [RestorableState(names, 1.0, tier) for tier in ("ram", "disk") for names in states]
    for tier in ("ram", "disk"):
        names = [name for one in held.tell().saved if one.tier == tier for name in one.names]
        assert names == list(range(NAMES_MAX))

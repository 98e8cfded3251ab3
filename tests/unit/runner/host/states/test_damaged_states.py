"""Ten thousand damaged and foreign states, at every door: none is accepted, nothing crashes."""

import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.states import messages
from runner.core.states.blob import DamagedState, StateIndex, read_index, trailer
from runner.core.states.catalogue import StateEntry
from runner.core.states.chain import chain, name_space, state_key
from runner.core.states.gate import Tier
from runner.host.states.disk import BadStateFile, DiskTier, StateRecord
from runner.sealed_memory import create_memory_file, is_sealed

FILES, INDEXES, MESSAGES = 3500, 4500, 2000
SPACE = name_space({"engine": "1"})
INPUTS = [*range(300, 400), -(2**130) - 4, *range(500, 560)]


def record(salt: str = "a", *, domain: bytes = b"model", inputs: list[int] | None = None) -> tuple[StateRecord, bytes]:
    """A state and its bytes."""
    inputs = INPUTS if inputs is None else inputs
    data = payload(inputs)
    links = chain(SPACE, salt, inputs)
    entry = StateEntry(
        key=state_key(links, inputs),
        links=links,
        inputs=len(inputs),
        size_bytes=len(data),
        tier=Tier.RAM,
        saved_s=1.5,
    )
    return StateRecord(entry=entry, domain=domain, salt=salt, saved_at_s=1000.0), data


def payload(inputs: list[int]) -> bytes:
    engine = random.Random(len(inputs)).randbytes(3000)
    index = StateIndex(inputs=inputs, state=(0, 2000), checkpoints={64: (2000, 3000)}, first_position=0)
    return engine + trailer(index)


def write(tier: DiskTier, saved: StateRecord, data: bytes) -> Path:
    descriptor = create_memory_file()
    try:
        os.write(descriptor, data)
        tier.write(saved, descriptor)
    finally:
        os.close(descriptor)
    return tier.directory / f"{saved.id}.state"


def tier(directory: Path, name: str = "node") -> DiskTier:
    return DiskTier(directory / name, directory / f"{name}.key")


def test_a_good_state_comes_back_sealed_and_equal(tmp_path: Path) -> None:
    node = tier(tmp_path)
    saved, data = record()
    write(node, saved, data)
    descriptor = node.read(saved.id)
    assert is_sealed(descriptor)
    assert os.pread(descriptor, len(data) + 1, 0) == data
    assert read_index(memoryview(data)).inputs == INPUTS
    (found,) = tier(tmp_path).read_records()
    assert found == replace(saved, entry=replace(saved.entry, tier=Tier.DISK))
    os.close(descriptor)


def test_no_damaged_or_foreign_file_is_given_to_a_runner(tmp_path: Path) -> None:
    draw, node, other = random.Random(7), tier(tmp_path), tier(tmp_path, "other")
    saved, data = record()
    path = write(node, saved, data)
    good = path.read_bytes()
    foreign = write(other, saved, data).read_bytes()
    neighbour, neighbours_data = record("b")
    neighbours = write(node, neighbour, neighbours_data).read_bytes()
    build, builds_data = record(domain=b"another model")
    builds = write(node, build, builds_data).read_bytes()
    refused = Counter[str]()
    for number in range(FILES):
        kind, damaged = damage(draw, number, good, foreign=foreign, neighbours=neighbours, builds=builds)
        path.write_bytes(damaged)
        with pytest.raises((BadStateFile, OSError)):
            os.close(node.read(saved.id))
        refused[kind] += 1
    path.write_bytes(good)
    os.close(node.read(saved.id))
    assert refused.total() == FILES
    assert min(refused.values()) > FILES // 20


def damage(
    draw: random.Random, number: int, good: bytes, *, foreign: bytes, neighbours: bytes, builds: bytes
) -> tuple[str, bytes]:
    """A file that this node must not use."""
    match number % 7:
        case 0:
            place = draw.randrange(len(good))
            return "flipped", good[:place] + bytes([good[place] ^ 1 << draw.randrange(8)]) + good[place + 1 :]
        case 1:
            return "truncated", good[: draw.randrange(len(good))]
        case 2:
            return "another key", foreign
        case 3:
            return "another tenant", neighbours
        case 4:
            return "another model", builds
        case 5:
            place = draw.randrange(len(good))
            return "longer", good[:place] + draw.randbytes(draw.randrange(1, 100)) + good[place:]
        case _:
            cut = draw.randrange(1, len(good) - 1)
            return "joined", neighbours[:cut] + good[cut:] if neighbours[:cut] != good[:cut] else good[cut:]


def test_no_damaged_description_is_read_as_the_state_that_it_was() -> None:
    """A runner that reads hostile files may write anything: the key tells what the inputs are."""
    draw, data = random.Random(8), payload(INPUTS)
    links = chain(SPACE, "a", INPUTS)
    wanted, accepted, read = state_key(links, INPUTS), 0, 0
    for _ in range(INDEXES):
        damaged = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(3000, len(damaged))
            damaged[place] ^= 1 << draw.randrange(8)
        if draw.random() < 0.3:
            del damaged[draw.randrange(3000, len(damaged)) :]
        try:
            index = read_index(memoryview(bytes(damaged)))
        except DamagedState:
            continue
        read += 1
        assert all(0 <= start < stop <= len(damaged) for start, stop in (index.state, *index.checkpoints.values()))
        found = chain(SPACE, "a", index.inputs)
        accepted += bool(found) and state_key(found, index.inputs) == wanted and index.inputs != INPUTS
    assert accepted == 0
    assert read > 0, "some damage is not noticed before the key"


def test_no_damaged_message_crashes_the_host() -> None:
    draw = random.Random(9)
    saved, _ = record()
    good = messages.encode("put", **messages.entry_fields(saved.entry), salt="a", replaces="", epoch=0)
    for _ in range(MESSAGES):
        damaged = bytearray(good)
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(damaged))
            damaged[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        try:
            message = messages.decode(bytes(damaged))
            entry = messages.read_entry(message, tier=Tier.RAM)
            messages.read_salt(message)
            messages.natural(message, "epoch")
        except messages.BadMessage:
            continue
        assert 0 <= entry.size_bytes < 2**49
        assert len(entry.key) == 32


def test_unfinished_files_go_at_the_start_and_others_stay(tmp_path: Path) -> None:
    node = tier(tmp_path)
    saved, data = record()
    path = write(node, saved, data)
    unfinished = node.directory / f"{'0' * 32}.new"
    shutil.copy(path, unfinished)
    moved = node.directory / f"{'1' * 32}.state"
    shutil.copy(path, moved)
    theirs = node.directory / "notes.txt"
    theirs.write_text("not of this program")
    assert [found.id for found in node.read_records()] == [saved.id]
    assert not unfinished.exists()
    assert not moved.exists()
    assert theirs.read_text() == "not of this program"
    assert path.exists()

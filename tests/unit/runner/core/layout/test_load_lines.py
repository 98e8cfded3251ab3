"""Parsing of the engine's log of a load."""

import pytest

from runner.core.layout.load_log import NOTED, BufferRefusal, MemoryClass, find_refusal, parse_notes

LINES = [
    "load_tensors: layer   0 assigned to device RPC0, is_swa = 1",
    "load_tensors: layer   1 assigned to device CPU, is_swa = 0",
    "sched_reserve: Flash Attention enabled",
    "sched_reserve: reserve took 2.24 ms, sched copies = 4",
]


def test_layers_copies_and_attention_are_read() -> None:
    notes = parse_notes(LINES)
    assert notes.windowed == {0: True, 1: False}
    assert notes.graph_copies == 4
    assert notes.flash_attention is True
    assert all(any(word in line for word in NOTED) for line in LINES)


def test_the_last_word_counts_and_silence_is_not_known() -> None:
    later = [*LINES, "x: Flash Attention not supported, set to disabled", "x: reserve took 1 ms, sched copies = 1"]
    notes = parse_notes(later)
    assert (notes.graph_copies, notes.flash_attention) == (1, False)
    silent = parse_notes(["something else"])
    assert (silent.windowed, silent.graph_copies, silent.flash_attention) == ({}, None, None)


BUFFER = "alloc_tensor_range: failed to allocate RPC0[127.0.0.1:5] buffer of size 1048576"


@pytest.mark.behaviour("B-61", "B-68")
@pytest.mark.parametrize(
    ("lines", "phase", "refusal"),
    [
        (
            [BUFFER, "llama_model_load: error loading model: unable to allocate RPC0[127.0.0.1:5] buffer"],
            MemoryClass.WEIGHTS,
            BufferRefusal(buffer="RPC0[127.0.0.1:5]", size_bytes=1048576, what=MemoryClass.WEIGHTS),
        ),
        (
            [BUFFER, "llama_init_from_model: failed to allocate buffer for kv cache"],
            MemoryClass.GRAPH,
            BufferRefusal(buffer="RPC0[127.0.0.1:5]", size_bytes=1048576, what=MemoryClass.CACHE),
        ),
        (
            ["gallocr: failed to allocate CUDA0 buffer of size 77", "failed to allocate compute pp buffers"],
            MemoryClass.GRAPH,
            BufferRefusal(buffer="CUDA0", size_bytes=77, what=MemoryClass.GRAPH),
        ),
        (
            ["error loading model: unable to allocate CUDA1 buffer"],
            MemoryClass.WEIGHTS,
            BufferRefusal(buffer="CUDA1", size_bytes=0, what=MemoryClass.WEIGHTS),
        ),
        (
            ["cudaMalloc failed: out of memory"],
            MemoryClass.GRAPH,
            BufferRefusal(buffer="", size_bytes=0, what=MemoryClass.GRAPH),
        ),
        (["invalid magic"], MemoryClass.WEIGHTS, None),
        ([], MemoryClass.WEIGHTS, None),
    ],
)
def test_a_refused_allocation_is_told_from_other_failures(
    lines: list[str], phase: MemoryClass, refusal: BufferRefusal | None
) -> None:
    assert find_refusal(lines, phase=phase) == refusal

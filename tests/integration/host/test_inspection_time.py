"""Processor time of the process that inspects headers, as the kernel counted it, start of Python and end included."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.__main__ import CONFINED
from runner.core.model.gguf_check import (
    ARRAY_ELEMENTS_MAX,
    HEADER_BYTES_MAX,
    KEY_WORK,
    TENSOR_WORK,
    TOKEN_WORK,
    TOKENS_KEY,
    WORK_MAX,
)
from runner.inspect import EXIT_BAD_FILE
from tests.integration.runner.processes import ROOT
from tests.unit.runner.core.model.test_gguf_check import ARRAY, STRING, UINT32, File, key, tensor, text

CPU_S_MAX = 2.0
# The kernel ends a process at its limit, and counts what it takes to give hundreds of MiB back, too.
END_S_MAX = 0.5
INT32, FLOAT64 = 5, 12
CONTROL = 3
# Real vocabularies and merges are no larger.
TOKENS, MERGES = 262_144, 515_000
LLAMA = [
    key(b"general.architecture", STRING, text(b"llama")),
    key(b"tokenizer.ggml.model", STRING, text(b"gpt2")),
]


def array(name: bytes, kind: int, count: int, content: bytes) -> bytes:
    return key(name, ARRAY, struct.pack("<IQ", kind, count) + content)


def file(*keys: bytes, tensors: int = 1) -> bytes:
    """Return a header with names that differ at their ends only."""
    rows = [tensor(b"t" * 58 + b"%05d" % number, [8], offset=32 * number) for number in range(tensors)]
    return File(keys=[*LLAMA, *keys], tensors=rows, data=bytes(32 * tensors)).content()


def vocabulary(count: int, *, fill: bytes, kind: int) -> list[bytes]:
    texts = b"".join(text(b"%07d" % number + fill) for number in range(count))
    return [
        array(TOKENS_KEY, STRING, count, texts),
        array(b"tokenizer.ggml.token_type", INT32, count, struct.pack("<i", kind) * count),
    ]


def largest() -> bytes:
    merges = b"".join(text(b"tok%05d tok%05d" % (number % 99_991, number // 7)) for number in range(MERGES))
    scores = array(b"tokenizer.ggml.scores", INT32, TOKENS, bytes(4 * TOKENS))
    merged = array(b"tokenizer.ggml.merges", STRING, MERGES, merges)
    return file(*vocabulary(TOKENS, fill=b"", kind=1), scores, merged, tensors=1000)


def many_names() -> bytes:
    count = WORK_MAX // (KEY_WORK + TENSOR_WORK + 4) - 10
    keys = [key(b"k" * 58 + b"%05d" % number, UINT32, bytes(4)) for number in range(count)]
    return file(*keys, tensors=count)


def control_tokens(fill: bytes) -> Callable[[], bytes]:
    count = WORK_MAX // (TOKEN_WORK + 2)
    return lambda: file(*vocabulary(count, fill=fill * (HEADER_BYTES_MAX // count - 40), kind=CONTROL))


def long_texts(fill: bytes, size: int) -> Callable[[], bytes]:
    count = HEADER_BYTES_MAX * 4 // 5 // size
    return lambda: file(*(key(b"t%d" % number, STRING, text(fill * size)) for number in range(count)))


def short_arrays(fill: bytes) -> Callable[[], bytes]:
    count = WORK_MAX // (KEY_WORK + 6) // 2
    return lambda: file(*(array(b"a%d" % number, STRING, 5, text(fill * 250) * 5) for number in range(count)))


def numbers() -> bytes:
    count = min(ARRAY_ELEMENTS_MAX, HEADER_BYTES_MAX // 17)
    return file(*(array(b"n%d" % number, FLOAT64, count, os.urandom(8 * count)) for number in range(2)))


def strings() -> bytes:
    count = WORK_MAX - 10_000
    return file(array(b"s", STRING, count, text(b"\1" * 20) * count))


HEADERS: dict[str, Callable[[], bytes]] = {
    "as many keys and tensors as may be": many_names,
    "control tokens": control_tokens(b"x"),
    "control tokens that JSON escapes": control_tokens(b"\1"),
    "control tokens that are not UTF-8": control_tokens(b"\xff"),
    "long texts": long_texts(b"x", 9_000_000),
    "long texts that JSON escapes": long_texts(b"\1", 9_000_000),
    "long texts that are not UTF-8": long_texts(b"\xff", 9_000_000),
    "texts that are described": long_texts(b"\xff", 200_000),
    "short arrays of texts": short_arrays(b"\xff"),
    "numbers": numbers,
    "strings": strings,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    status: int  # negative: a signal
    cpu_s: float
    output: bytes


def inspected(path: Path, *words: str, code: Path | None = None) -> Inspected:
    """Run the child as a host without a zygote does. `code`: a folder with modules of the attacker's."""
    output = path.with_suffix(".json")
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "runner", "inspect", *words, str(path)],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{code or ROOT}:{ROOT}"},
            stdout=sink,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Inspected(status=process.returncode, cpu_s=cpu_s, output=output.read_bytes())


@pytest.mark.parametrize("name", HEADERS)
def test_a_hostile_header_is_described_or_refused_in_two_seconds(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HEADERS[name]())
    for words in ((), ("--part",)):
        done = inspected(path, *words)
        assert done.cpu_s <= CPU_S_MAX, f"{words}: {done.status}"
        assert done.status in (0, EXIT_BAD_FILE)
    whole = inspected(path, "--header")  # everything is shown, and the limit ends what takes longer
    assert whole.cpu_s <= CPU_S_MAX + END_S_MAX
    assert whole.status in (0, -9)


def test_the_largest_real_header_is_described_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(largest())
    described = inspected(path)
    assert described.status == 0
    assert json.loads(described.output)["vocabulary_size"] == TOKENS
    whole = inspected(path, "--header")
    assert whole.status == 0
    assert len(json.loads(whole.output)["metadata"]["tokenizer.ggml.merges"]) == MERGES


BUSY = """
import signal, sys

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name == "runner.inspect":
            for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            while True:
                pass

sys.meta_path.insert(0, Trap())
"""


def test_hostile_code_in_the_child_computes_for_two_seconds_at_most(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUSY)
    path = tmp_path / "m.gguf"
    path.symlink_to(dense)
    done = inspected(path, code=tmp_path)
    assert done.status == -9
    assert CONFINED["inspect"].cpu_s == CPU_S_MAX <= done.cpu_s + END_S_MAX <= CPU_S_MAX + 2 * END_S_MAX

"""Random tensor bytes that are the same everywhere: only raw generator bits, shifts, products and roots are used.

NumPy keeps the bit stream of a bit generator stable across its versions, but not what its distributions make of it,
and the last bit of `exp` or `log` depends on the processor. Hence uniform weights, made here.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.model_zoo.recipe import WeightType

CHUNK_ELEMENTS = 4 * 1024 * 1024  # bounds the memory of a build, whatever the size of the tensor
BLOCK_ELEMENTS = 32  # of Q8_0: one float16 scale and 32 signed bytes
BLOCK_BYTES = 2 + BLOCK_ELEMENTS
INT8_DEVIATION = math.sqrt((256**2 - 1) / 12)  # of a uniform signed byte

BYTES_PER_ELEMENT = {WeightType.F32: 4, WeightType.F16: 2}
DTYPES = {WeightType.F32: "<f4", WeightType.F16: "<f2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """Distribution of a tensor's values: uniform around a mean, some rows weaker, some values negated.

    Attributes:
        deviation: standard deviation.
        weak_rows: half-open row range [start, stop) that is multiplied by `WEAK`.
        random_signs: negate about half of the values.
    """

    mean: float = 0.0
    deviation: float = 0.0
    weak_rows: tuple[int, int] = (0, 0)
    random_signs: bool = False


WEAK = 0.1


def tensor_bytes(elements: int, weights: WeightType) -> int:
    """Return the size of a tensor's data."""
    if weights is WeightType.Q8_0:
        return elements // BLOCK_ELEMENTS * BLOCK_BYTES
    return elements * BYTES_PER_ELEMENT[weights]


def random_tensor(seed_text: str, rows: int, columns: int, weights: WeightType, fill: Fill) -> Iterator[bytes]:
    """Yield the data of a tensor in file order, at most `CHUNK_ELEMENTS` (or one row) at a time."""
    source = np.random.PCG64(int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:16], "little"))
    rows_per_chunk = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, rows_per_chunk):
        stop = min(rows, start + rows_per_chunk)
        gain = np.ones((stop - start, 1), dtype=np.float32)
        gain[max(0, fill.weak_rows[0] - start) : max(0, fill.weak_rows[1] - start)] = WEAK
        if weights is WeightType.Q8_0:
            yield _quantised(source, gain, columns, fill).tobytes()
        else:
            yield _floats(source, gain, columns, fill).astype(DTYPES[weights]).tobytes()


def _floats(source: np.random.PCG64, gain: NDArray[np.float32], columns: int, fill: Fill) -> NDArray[np.float32]:
    """Return float32[rows, columns]."""
    bits = _raw(source, gain.size * columns * 4).view("<u4")
    unit = (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)  # [-1, 1)
    values = unit * np.float32(fill.deviation * math.sqrt(3)) + np.float32(fill.mean)
    if fill.random_signs:
        values = np.where(bits & np.uint32(1), -values, values)  # a bit that the value above does not use
    return np.asarray(values.reshape(gain.size, columns) * gain, dtype=np.float32)


def _quantised(source: np.random.PCG64, gain: NDArray[np.float32], columns: int, fill: Fill) -> NDArray[np.uint8]:
    """Return uint8[rows, blocks, 34]: random quants under one scale per row, which is faster than quantising."""
    assert columns % BLOCK_ELEMENTS == 0
    assert fill.mean == 0
    blocks = np.empty((gain.size, columns // BLOCK_ELEMENTS, BLOCK_BYTES), dtype=np.uint8)
    scales = (gain * np.float32(fill.deviation / INT8_DEVIATION)).astype("<f2")
    blocks[:, :, :2] = scales.view(np.uint8).reshape(gain.size, 1, 2)
    blocks[:, :, 2:] = _raw(source, gain.size * columns).reshape(gain.size, -1, BLOCK_ELEMENTS)
    return blocks


def _raw(source: np.random.PCG64, count: int) -> NDArray[np.uint8]:
    """Return that many random bytes."""
    words = np.asarray(source.random_raw(-(-count // 8)), dtype="<u8")
    return words.view(np.uint8)[:count]

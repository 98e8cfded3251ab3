"""LoRA adapters for models of the zoo: random, of low rank, strong enough to change what a model says."""

import math
import os
import tempfile
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tools.model_zoo.noise import Fill, random_tensor
from tools.model_zoo.recipe import WeightType

RANK = 4
# Matrices of a block that adapters usually change; a model has some of them.
CHANGED = ("attn_q.weight", "attn_v.weight", "attn_output.weight", "ffn_down.weight")
# Deviation of the change relative to that of a matrix that keeps the size of its input.
STRENGTH = 0.5


def build_adapter(model: Path, directory: Path, *, name: str = "adapter", rank: int = RANK) -> Path:
    """Write `<directory>/<name>.gguf`, an adapter for the model of a file; equal names and models give equal bytes."""
    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    handle, partial = tempfile.mkstemp(prefix=f".{name}-", suffix=".part", dir=directory)
    os.close(handle)
    path = directory / f"{name}.gguf"
    try:
        writer = gguf.GGUFWriter(partial, architecture)
        writer.add_type("adapter")
        writer.add_name(name)
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(rank))  # so that a scale of 1 means the product itself
        for tensor in reader.tensors:
            if tensor.name.endswith(CHANGED):
                columns, rows = (int(length) for length in tensor.shape)
                for suffix, shape, deviation in (
                    ("lora_a", (rank, columns), 1 / math.sqrt(columns)),
                    ("lora_b", (rows, rank), STRENGTH / math.sqrt(rank)),
                ):
                    changed = f"{tensor.name}.{suffix}"
                    writer.add_tensor(changed, _noise(f"{name}/{changed}", shape, deviation))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def _noise(seed_text: str, shape: tuple[int, int], deviation: float) -> NDArray[np.float32]:
    rows, columns = shape
    data = b"".join(random_tensor(seed_text, rows, columns, WeightType.F32, Fill(deviation=deviation)))
    return np.frombuffer(data, "<f4").reshape(shape)

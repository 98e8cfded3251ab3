"""Write a recipe's model file, or find it already written."""

import hashlib
import os
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families import compose
from tools.model_zoo.recipe import Recipe, WeightType
from tools.model_zoo.tokens.tokenizer import Value

RECIPE_KEY = "puna.zoo.recipe"
# The key is among the first entries of a file, so that its beginning shows whether the file is current.
RECIPE_WITHIN_BYTES = 1024
TENSOR_TYPES = {
    WeightType.F32: gguf.GGMLQuantizationType.F32,
    WeightType.F16: gguf.GGMLQuantizationType.F16,
    WeightType.Q8_0: gguf.GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {
    WeightType.F32: gguf.LlamaFileType.ALL_F32,
    WeightType.F16: gguf.LlamaFileType.MOSTLY_F16,
    WeightType.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
}


def write_model(recipe: Recipe, directory: Path) -> Path:
    """Return the recipe's model file in the directory; write it unless the same one is there.

    The file appears under its name only when it is complete, so several processes may build at once.
    """
    path = directory / f"{recipe.name}.gguf"
    if _is_current(path, recipe):
        return path
    directory.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{recipe.name}-", suffix=".part", dir=directory)
    os.close(handle)
    partial = Path(name)
    try:
        _write(recipe, partial)
        partial.chmod(0o644)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def recipe_hash(recipe: Recipe) -> str:
    """Return what names the bytes of a recipe's file: the recipe, this package's code, and the gguf version."""
    return hashlib.sha256(f"{recipe!r}\n{_code_hash()}\n{version('gguf')}".encode()).hexdigest()


@cache
def _code_hash() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(path for path in package.rglob("*") if path.suffix in {".py", ".txt"}):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_current(path: Path, recipe: Recipe) -> bool:
    try:
        with path.open("rb") as file:
            return recipe_hash(recipe).encode() in file.read(RECIPE_WITHIN_BYTES)
    except FileNotFoundError:
        return False


def _write(recipe: Recipe, path: Path) -> None:
    blueprint = compose(recipe)
    writer = gguf.GGUFWriter(path, blueprint.architecture)
    writer.add_string(RECIPE_KEY, recipe_hash(recipe))
    writer.add_type("mmproj" if recipe.vision else "model")
    writer.add_name(recipe.name)
    writer.add_description(recipe.about)
    writer.add_license("Apache-2.0")
    writer.add_file_type(FILE_TYPES[recipe.weights])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in blueprint.metadata:
        _add_entry(writer, key, value)
    for plan in blueprint.tensors:
        writer.add_tensor_info(
            plan.name, plan.shape, np.dtype(np.float32), plan.size_bytes, raw_dtype=TENSOR_TYPES[plan.weights]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        _append_tensors(file, blueprint)


def _append_tensors(file: BinaryIO, blueprint: Blueprint) -> None:
    """Append the tensors' data chunk by chunk: gguf's own way needs a whole tensor in memory."""
    recipe = blueprint.recipe
    for plan in blueprint.tensors:
        _pad(file)
        start = file.tell()
        for chunk in plan.chunks(f"{recipe.name}/{recipe.seed}"):
            file.write(chunk)
        assert file.tell() - start == plan.size_bytes
    _pad(file)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))


def _add_entry(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)

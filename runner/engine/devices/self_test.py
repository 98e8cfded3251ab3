"""Test of this build of the engine on this processor: a quantized model is made, loaded and decoded with."""

import ctypes
import tempfile
from pathlib import Path

import llama_cpp.llama_cpp as llama

from runner.engine.bindings import library

_Q8_0 = 7  # llama_ftype
_CONTEXT_TOKENS = 256
_TOKENS = (300, 301)


class SelfTestFailed(Exception):
    """The engine said no. What it did wrong without noticing ends the process instead."""


def compute(model: Path) -> None:
    """Decode two tokens with the weights of a model as Q8_0, whose kernels are what compilers get wrong.

    Raises:
        SelfTestFailed: which step failed.
    """
    library.start_engine()
    with tempfile.TemporaryDirectory() as directory:
        quantized = str(Path(directory) / "self-test-q8_0.gguf").encode()
        how = llama.llama_model_quantize_default_params()
        how.ftype = _Q8_0
        if llama.llama_model_quantize(str(model).encode(), quantized, ctypes.byref(how)):
            raise SelfTestFailed(f"{model.name} cannot be quantized")
        loaded = llama.llama_model_load_from_file(quantized, llama.llama_model_default_params())
        if not loaded:
            raise SelfTestFailed("the quantized model cannot be loaded")
        sizes = llama.llama_context_default_params()
        sizes.n_ctx = _CONTEXT_TOKENS
        context = llama.llama_init_from_model(loaded, sizes)
        if not context:
            raise SelfTestFailed("no context can be made")
        tokens = (ctypes.c_int32 * len(_TOKENS))(*_TOKENS)
        status = llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(_TOKENS)))
        if status != 0:
            raise SelfTestFailed(f"decoding answers {status}")
        llama.llama_free(context)
        llama.llama_model_free(loaded)

"""Write a trained checkpoint as GGUF.

Usage: `python -m tools.demo_model.export --checkpoint FOLDER --output models/demo.gguf`
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.demo_model.chat import END_OF_TURN, read_template
from tools.demo_model.model import Llama, Shape
from tools.demo_model.tokenizer import END_OF_TEXT, PRE_TOKENIZER, SPECIAL_TOKENS, Visibility, load_tokenizer
from tools.demo_model.train import CHECKPOINT, TOKENIZER

TENSORS_OF_MODEL = {"embedding.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
TENSORS_OF_LAYER = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.query.weight": "attn_q.weight",
    "attention.key.weight": "attn_k.weight",
    "attention.value.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "feed_forward_norm.weight": "ffn_norm.weight",
    "feed_forward.gate.weight": "ffn_gate.weight",
    "feed_forward.up.weight": "ffn_up.weight",
    "feed_forward.down.weight": "ffn_down.weight",
}
TOKEN_TYPES = {
    Visibility.HIDDEN: gguf.TokenType.CONTROL,
    Visibility.SHOWN: gguf.TokenType.USER_DEFINED,
}


def load_model(folder: Path) -> Llama:
    """Read a checkpoint that `train` wrote."""
    checkpoint = torch.load(folder / CHECKPOINT, weights_only=True)
    model = Llama(Shape(**checkpoint["shape"]))
    model.load_state_dict(checkpoint["weights"])
    return model


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor of the torch model."""
    if name in TENSORS_OF_MODEL:
        return TENSORS_OF_MODEL[name]
    _, layer, rest = name.split(".", maxsplit=2)
    return f"blk.{layer}.{TENSORS_OF_LAYER[rest]}"


def add_description(writer: gguf.GGUFWriter, model: Llama) -> None:
    """Write what the file is and the sizes of the model."""
    shape = model.shape
    parameters = sum(parameter.numel() for parameter in model.parameters())
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("Puna demo")
    writer.add_description("A small model that answers questions about Puna, trained on a corpus of its own")
    writer.add_license("Apache-2.0")
    writer.add_languages(["en"])
    writer.add_size_label(f"{parameters / 1e6:.1f}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_value_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write vocabulary, merges, special tokens and chat template."""
    specials = {token.text: TOKEN_TYPES[token.visibility] for token in SPECIAL_TOKENS}
    ids = tokenizer.get_vocab()
    texts = sorted(ids, key=ids.__getitem__)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(texts)
    writer.add_token_types([specials.get(text, gguf.TokenType.NORMAL) for text in texts])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(ids[END_OF_TEXT])  # never added; without a value llama.cpp would take token 11
    writer.add_eos_token_id(ids[END_OF_TURN])
    writer.add_eot_token_id(ids[END_OF_TURN])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(read_template())


def as_stored(weights: torch.Tensor) -> NDArray[numpy.float16] | NDArray[numpy.float32]:
    """Return matrices in half precision and vectors, the norms, in single: what llama.cpp expects."""
    array: NDArray[numpy.float32] = weights.detach().numpy()
    return array.astype(numpy.float16) if array.ndim > 1 else array


def export(folder: Path, output: Path) -> None:
    """Write the GGUF of the checkpoint in `folder`."""
    model = load_model(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(output, "llama")
    add_description(writer, model)
    add_tokenizer(writer, load_tokenizer(folder / TOKENIZER))
    for name, weights in model.state_dict().items():
        writer.add_tensor(gguf_name(name), as_stored(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder that train wrote")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    export(arguments.checkpoint, arguments.output)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()

"""Tokens that end an answer, listed so that a measurement can ban them and every answer has the same length."""

from pathlib import Path

from gguf import GGUFReader

_ID_KEYS = (
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
)
# Texts that llama.cpp takes for the end of an answer, whatever the header says. Source: llama-vocab.cpp, load().
_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "</s>",
    }
)


def end_token_ids(model: Path) -> list[int]:
    """Ids of the tokens that llama.cpp ends an answer at."""
    reader = GGUFReader(str(model))
    ids = {int(field.contents()) for key in _ID_KEYS if (field := reader.get_field(key)) is not None}
    tokens = reader.get_field("tokenizer.ggml.tokens")
    assert tokens is not None, "a model for text has tokens"
    ids.update(number for number, text in enumerate(tokens.contents()) if text in _TEXTS)
    return sorted(ids)

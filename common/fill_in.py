"""The tokens between which a model fills in the middle of a text. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# A token is known by its id, as the file's metadata gives it, or by its text.
TokenName = int | str

# Keys of metadata, the newer ones first: prefix, suffix, middle.
_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.fim_mid_token_id"),
    ("tokenizer.ggml.prefix_token_id", "tokenizer.ggml.suffix_token_id", "tokenizer.ggml.middle_token_id"),
)
# What vocabularies call them where the metadata says nothing; llama.cpp knows them by these texts, too.
_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FillInTokens:
    """Tokens that open the three parts of a fill-in prompt: text before the gap, text behind it, text in it."""

    prefix: TokenName
    suffix: TokenName
    middle: TokenName


def fill_in_tokens(metadata: Mapping[str, object], special_texts: Collection[str]) -> FillInTokens | None:
    """Return the fill-in tokens of a vocabulary; None: its model cannot fill in.

    Args:
        metadata: of the file.
        special_texts: the texts of its control tokens.
    """
    for keys in _KEYS:
        prefix, suffix, middle = (metadata.get(key) for key in keys)
        if isinstance(prefix, int) and isinstance(suffix, int) and isinstance(middle, int):
            return FillInTokens(prefix=prefix, suffix=suffix, middle=middle)
    for texts in _TEXTS:
        if all(text in special_texts for text in texts):
            return FillInTokens(prefix=texts[0], suffix=texts[1], middle=texts[2])
    return None

"""Vocabularies that can fill in the middle of a text."""

import pytest

from common.fill_in import FillInTokens, fill_in_tokens


@pytest.mark.parametrize(
    ("metadata", "texts", "found"),
    [
        ({}, (), None),
        ({}, ("<|fim_prefix|>", "<|fim_suffix|>"), None),
        ({}, ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), "<|fim_prefix|>"),
        ({}, ("x", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>"),
        ({f"tokenizer.ggml.fim_{part}_token_id": 7 for part in ("pre", "suf", "mid")}, (), 7),
        ({f"tokenizer.ggml.{part}_token_id": 9 for part in ("prefix", "suffix", "middle")}, (), 9),
        ({"tokenizer.ggml.fim_pre_token_id": 7, "tokenizer.ggml.fim_suf_token_id": 8}, (), None),
    ],
)
def test_metadata_or_texts_name_them(
    metadata: dict[str, object], texts: tuple[str, ...], found: int | str | None
) -> None:
    tokens = fill_in_tokens(metadata, texts)
    assert (tokens.prefix if isinstance(tokens, FillInTokens) else None) == found

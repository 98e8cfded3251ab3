"""Parts that many architectures share: vocabulary tables, attention, feed-forward networks."""

import math

from tools.model_zoo.blueprint import LOGIT_DEVIATION, Blueprint
from tools.model_zoo.recipe import Recipe, TokenizerKind
from tools.model_zoo.tokens.byte_level import byte_level_tokenizer
from tools.model_zoo.tokens.sentence_piece import gemma_tokenizer, llama_tokenizer
from tools.model_zoo.tokens.tokenizer import Tokenizer
from tools.model_zoo.tokens.word_piece import word_piece_tokenizer

EMBEDDING_DEVIATION = 0.5
# Attention scores of random vectors spread by one, and a softmax of that is nearly an average of all positions. A wider
# spread makes every position matter, so that a wrong cell in a cache shows in the logits.
SCORE_GAIN = 1.7
TOKENIZERS = {
    TokenizerKind.BYTE_LEVEL: byte_level_tokenizer,
    TokenizerKind.LLAMA: llama_tokenizer,
    TokenizerKind.GEMMA: gemma_tokenizer,
    TokenizerKind.WORD_PIECE: word_piece_tokenizer,
}


def add_tokenizer(blueprint: Blueprint) -> Tokenizer:
    """Add the recipe's tokenizer and return it."""
    recipe = blueprint.recipe
    assert recipe.tokenizer is not None
    tokenizer = TOKENIZERS[recipe.tokenizer](recipe.vocabulary_tokens)
    blueprint.add_tokenizer(tokenizer)
    return tokenizer


def kv_heads_of_layers(recipe: Recipe) -> list[int]:
    """Return the key heads of each layer of a hybrid: none means that the layer is recurrent."""
    return [recipe.kv_heads if layer in recipe.attention_layers else 0 for layer in range(recipe.layers)]


def describe_transformer(blueprint: Blueprint) -> None:
    """Add the entries that every attention model has."""
    recipe = blueprint.recipe
    kv_heads = kv_heads_of_layers(recipe) if recipe.attention_layers else recipe.kv_heads
    blueprint.describe(
        block_count=recipe.layers,
        context_length=recipe.context_tokens,
        embedding_length=recipe.embedding,
        feed_forward_length=recipe.feed_forward,
        attention__head_count=recipe.heads,
        attention__head_count_kv=kv_heads,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__freq_base=recipe.rope_base,
        rope__dimension_count=recipe.head_length,
        vocab_size=recipe.vocabulary_tokens,
    )
    if recipe.head:
        blueprint.describe(attention__key_length=recipe.head, attention__value_length=recipe.head)
    if recipe.pooling is not None:
        blueprint.describe(pooling_type=recipe.pooling.value)


def add_vocabulary(blueprint: Blueprint, tokenizer: Tokenizer, *, output_norm: str = "output_norm") -> None:
    """Add the token table, the last norm, and the output matrix unless it is tied to the token table.

    Control tokens get weak output rows: a random model would otherwise end its answer after a few tokens. A tied model
    would forever repeat its last token, which is most similar to itself; random signs in the last norm undo that.
    """
    recipe = blueprint.recipe
    shape = (tokenizer.tokens, recipe.embedding)
    control_rows = (min(tokenizer.control_ids), max(tokenizer.control_ids) + 1)
    output_deviation = LOGIT_DEVIATION / math.sqrt(recipe.embedding)
    if recipe.tied:
        blueprint.table("token_embd.weight", *shape, deviation=output_deviation, weak_rows=control_rows)
    else:
        blueprint.table("token_embd.weight", *shape, deviation=EMBEDDING_DEVIATION)
        blueprint.table("output.weight", *shape, deviation=output_deviation, weak_rows=control_rows)
    blueprint.norm(f"{output_norm}.weight", recipe.embedding, random_signs=recipe.tied)


def add_attention(blueprint: Blueprint, layer: int, *, head_norms: bool = False, biases: bool = False) -> None:
    """Add query, key, value and output matrices; with head norms the norms carry the spread of the scores."""
    recipe, block = blueprint.recipe, f"blk.{layer}"
    lengths = {"attn_q": recipe.query_length, "attn_k": recipe.key_length, "attn_v": recipe.key_length}
    for name, length in lengths.items():
        gain = 1.0 if head_norms or name == "attn_v" else SCORE_GAIN
        blueprint.matrix(f"{block}.{name}.weight", length, recipe.embedding, gain=gain)
        if biases:
            blueprint.bias(f"{block}.{name}.bias", length)
    blueprint.matrix(f"{block}.attn_output.weight", recipe.embedding, recipe.query_length)
    if head_norms:
        blueprint.norm(f"{block}.attn_q_norm.weight", recipe.head_length, mean=SCORE_GAIN)
        blueprint.norm(f"{block}.attn_k_norm.weight", recipe.head_length, mean=SCORE_GAIN)


def add_feed_forward(blueprint: Blueprint, layer: int) -> None:
    """Add the gated feed-forward network of a layer."""
    recipe, block = blueprint.recipe, f"blk.{layer}"
    blueprint.matrix(f"{block}.ffn_gate.weight", recipe.feed_forward, recipe.embedding)
    blueprint.matrix(f"{block}.ffn_up.weight", recipe.feed_forward, recipe.embedding)
    blueprint.matrix(f"{block}.ffn_down.weight", recipe.embedding, recipe.feed_forward)


def add_experts(blueprint: Blueprint, layer: int) -> None:
    """Add the router of a layer and its experts, merged into one tensor per role."""
    recipe, block = blueprint.recipe, f"blk.{layer}"
    experts, inner, outer = recipe.experts, recipe.feed_forward, recipe.embedding
    blueprint.exact(f"{block}.ffn_gate_inp.weight", experts, outer, deviation=1 / math.sqrt(outer))
    blueprint.matrix(f"{block}.ffn_gate_exps.weight", experts, inner, outer)
    blueprint.matrix(f"{block}.ffn_up_exps.weight", experts, inner, outer)
    blueprint.matrix(f"{block}.ffn_down_exps.weight", experts, outer, inner)


def rope_pairs(recipe: Recipe) -> int:
    """Return the number of rotated pairs in a head, which is the length of stored frequency factors."""
    return recipe.head_length // 2

"""Phi 3 with LongRoPE: stored frequency factors, one set for short contexts and one for long ones."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    SCORE_GAIN,
    add_tokenizer,
    add_vocabulary,
    describe_transformer,
    rope_pairs,
)
from tools.model_zoo.recipe import Recipe

SHORT_CONTEXT_TOKENS = 4096  # a longer context takes the long factors


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a Phi 3 model: query, key and value in one tensor, gate and up in another."""
    blueprint = Blueprint(recipe, "phi3")
    describe_transformer(blueprint)
    blueprint.describe(rope__scaling__original_context_length=SHORT_CONTEXT_TOKENS, rope__scaling__attn_factor=1.2)
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    pairs = rope_pairs(recipe)
    blueprint.constants("rope_factors_long.weight", tuple(1.0 + 0.5 * pair for pair in range(pairs)))
    blueprint.constants("rope_factors_short.weight", tuple(1.0 + 0.0625 * pair for pair in range(pairs)))
    for layer in range(recipe.layers):
        block = f"blk.{layer}"
        all_heads = recipe.query_length + 2 * recipe.key_length
        blueprint.norm(f"{block}.attn_norm.weight", recipe.embedding)
        blueprint.matrix(f"{block}.attn_qkv.weight", all_heads, recipe.embedding, gain=SCORE_GAIN)
        blueprint.matrix(f"{block}.attn_output.weight", recipe.embedding, recipe.query_length)
        blueprint.norm(f"{block}.ffn_norm.weight", recipe.embedding)
        blueprint.matrix(f"{block}.ffn_up.weight", 2 * recipe.feed_forward, recipe.embedding)
        blueprint.matrix(f"{block}.ffn_down.weight", recipe.embedding, recipe.feed_forward)
    return blueprint

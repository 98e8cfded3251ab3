"""Llama: plain dense transformers with grouped query attention."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    add_attention,
    add_feed_forward,
    add_tokenizer,
    add_vocabulary,
    describe_transformer,
    rope_pairs,
)
from tools.model_zoo.recipe import Recipe


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a Llama model, with frequency factors (as Llama 3.1 and later have) if asked for."""
    blueprint = Blueprint(recipe, "llama")
    describe_transformer(blueprint)
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    if recipe.rope_factors:
        pairs = rope_pairs(recipe)
        blueprint.constants("rope_freqs.weight", tuple(1.0 if pair < pairs // 2 else 8.0 for pair in range(pairs)))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        add_attention(blueprint, layer)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
    return blueprint

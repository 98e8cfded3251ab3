"""Gemma 3: two of three layers see a sliding window only, the third sees everything."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    add_attention,
    add_feed_forward,
    add_tokenizer,
    add_vocabulary,
    describe_transformer,
)
from tools.model_zoo.recipe import Recipe

WINDOW_PATTERN_LAYERS = 3  # each third layer has full attention


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a Gemma 3 text model."""
    blueprint = Blueprint(recipe, "gemma3")
    describe_transformer(blueprint)
    blueprint.describe(
        attention__sliding_window=recipe.window_tokens,
        attention__sliding_window_pattern=WINDOW_PATTERN_LAYERS,
        rope__freq_base_swa=10000.0,
    )
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        add_attention(blueprint, layer, head_norms=True)
        blueprint.norm(f"blk.{layer}.post_attention_norm.weight", recipe.embedding)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
        blueprint.norm(f"blk.{layer}.post_ffw_norm.weight", recipe.embedding)
    return blueprint

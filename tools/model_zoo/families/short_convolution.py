"""LFM 2: short convolutions with a state, and a few attention layers. Its state can be rolled back a few tokens."""

import math

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    add_attention,
    add_feed_forward,
    add_tokenizer,
    add_vocabulary,
    describe_transformer,
)
from tools.model_zoo.recipe import Recipe

CONVOLUTION = 3


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of an LFM 2 model; layers without key heads are the convolutions."""
    blueprint = Blueprint(recipe, "lfm2")
    describe_transformer(blueprint)
    blueprint.describe(shortconv__l_cache=CONVOLUTION)
    add_vocabulary(blueprint, add_tokenizer(blueprint), output_norm="token_embd_norm")  # llama.cpp's name for it
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        if layer in recipe.attention_layers:
            add_attention(blueprint, layer, head_norms=True)
        else:
            _add_convolution(blueprint, layer)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
    return blueprint


def _add_convolution(blueprint: Blueprint, layer: int) -> None:
    embedding, block = blueprint.recipe.embedding, f"blk.{layer}.shortconv"
    blueprint.exact(f"{block}.conv.weight", embedding, CONVOLUTION, deviation=1 / math.sqrt(CONVOLUTION))
    blueprint.matrix(f"{block}.in_proj.weight", 3 * embedding, embedding)
    blueprint.matrix(f"{block}.out_proj.weight", embedding, embedding)

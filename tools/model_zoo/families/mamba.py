"""Mamba (a state instead of a cache) and Jamba (some layers attend, the others keep a state)."""

import math

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    add_attention,
    add_feed_forward,
    add_tokenizer,
    add_vocabulary,
    kv_heads_of_layers,
)
from tools.model_zoo.recipe import Recipe

STATE = 16
CONVOLUTION = 4
TIME_STEP_RANK = 8
# Softplus turns this bias into time steps around 0.05, where Mamba's initialisation puts them: long memory.
TIME_STEP_BIAS = -3.0
EXPANSION = 2  # the only one that llama.cpp supports


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a Mamba model: no attention at all."""
    blueprint = Blueprint(recipe, "mamba")
    blueprint.describe(feed_forward_length=0, attention__head_count=0)
    _describe(blueprint)
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        _add_state_space(blueprint, layer)
    return blueprint


def compose_hybrid(recipe: Recipe) -> Blueprint:
    """Return the plan of a Jamba model; layers without key heads are the recurrent ones."""
    blueprint = Blueprint(recipe, "jamba")
    blueprint.describe(
        feed_forward_length=recipe.feed_forward,
        attention__head_count=recipe.heads,
        attention__head_count_kv=kv_heads_of_layers(recipe),
    )
    _describe(blueprint)
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        if layer in recipe.attention_layers:
            add_attention(blueprint, layer)
        else:
            _add_state_space(blueprint, layer)
            for name, length in (("ssm_dt_norm", TIME_STEP_RANK), ("ssm_b_norm", STATE), ("ssm_c_norm", STATE)):
                blueprint.norm(f"blk.{layer}.{name}.weight", length)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
    return blueprint


def _describe(blueprint: Blueprint) -> None:
    recipe = blueprint.recipe
    blueprint.describe(
        block_count=recipe.layers,
        context_length=recipe.context_tokens,
        embedding_length=recipe.embedding,
        vocab_size=recipe.vocabulary_tokens,
        attention__layer_norm_rms_epsilon=1e-5,
        ssm__conv_kernel=CONVOLUTION,
        ssm__inner_size=EXPANSION * recipe.embedding,
        ssm__state_size=STATE,
        ssm__time_step_rank=TIME_STEP_RANK,
    )


def _add_state_space(blueprint: Blueprint, layer: int) -> None:
    embedding, inner, block = blueprint.recipe.embedding, EXPANSION * blueprint.recipe.embedding, f"blk.{layer}"
    blueprint.matrix(f"{block}.ssm_in.weight", 2 * inner, embedding)
    blueprint.exact(f"{block}.ssm_conv1d.weight", inner, CONVOLUTION, deviation=1 / math.sqrt(CONVOLUTION))
    blueprint.bias(f"{block}.ssm_conv1d.bias", inner)
    blueprint.matrix(f"{block}.ssm_x.weight", TIME_STEP_RANK + 2 * STATE, inner, gain=2.0)
    blueprint.exact(f"{block}.ssm_dt.weight", inner, TIME_STEP_RANK, deviation=1 / math.sqrt(TIME_STEP_RANK))
    blueprint.bias(f"{block}.ssm_dt.bias", inner, mean=TIME_STEP_BIAS)
    blueprint.constants(f"{block}.ssm_a", tuple(-float(rate) for rate in range(1, STATE + 1)), rows=inner)
    blueprint.constants(f"{block}.ssm_d", (1.0,) * inner)
    blueprint.matrix(f"{block}.ssm_out.weight", embedding, inner, gain=2.0)

"""Qwen: normed heads (Qwen 3), experts (Qwen 3 MoE), and positions with three components (Qwen 2 VL)."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import (
    add_attention,
    add_experts,
    add_feed_forward,
    add_tokenizer,
    add_vocabulary,
    describe_transformer,
)
from tools.model_zoo.recipe import Recipe


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a dense Qwen 3 model; with a pooling it is an embedding model."""
    blueprint = Blueprint(recipe, "qwen3")
    describe_transformer(blueprint)
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        add_attention(blueprint, layer, head_norms=True)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
    return blueprint


def compose_moe(recipe: Recipe) -> Blueprint:
    """Return the plan of a Qwen 3 mixture of experts; `feed_forward` is the length of one expert."""
    blueprint = Blueprint(recipe, "qwen3moe")
    describe_transformer(blueprint)
    blueprint.describe(
        expert_count=recipe.experts,
        expert_used_count=recipe.experts_used,
        expert_feed_forward_length=recipe.feed_forward,
    )
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        add_attention(blueprint, layer, head_norms=True)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_experts(blueprint, layer)
    return blueprint


def compose_vision(recipe: Recipe) -> Blueprint:
    """Return the plan of a Qwen 2 VL text model: M-RoPE, so the rows of an image share one step in time."""
    blueprint = Blueprint(recipe, "qwen2vl")
    describe_transformer(blueprint)
    blueprint.describe(rope__dimension_sections=list(recipe.mrope_sections))
    add_vocabulary(blueprint, add_tokenizer(blueprint))
    for layer in range(recipe.layers):
        blueprint.norm(f"blk.{layer}.attn_norm.weight", recipe.embedding)
        add_attention(blueprint, layer, biases=True)
        blueprint.norm(f"blk.{layer}.ffn_norm.weight", recipe.embedding)
        add_feed_forward(blueprint, layer)
    return blueprint

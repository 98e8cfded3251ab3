"""BERT: encoders that turn a text into one vector, and rerankers that turn a pair of texts into one score."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families.layers import EMBEDDING_DEVIATION, SCORE_GAIN, add_tokenizer
from tools.model_zoo.recipe import Pooling, Recipe

SCORE_OUTPUT_GAIN = 3.0


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of a BERT model; the pooling decides whether it has a classification head."""
    assert recipe.pooling is not None
    blueprint = Blueprint(recipe, "bert")
    blueprint.describe(
        block_count=recipe.layers,
        context_length=recipe.context_tokens,
        embedding_length=recipe.embedding,
        feed_forward_length=recipe.feed_forward,
        attention__head_count=recipe.heads,
        attention__layer_norm_epsilon=1e-12,
        attention__causal=False,
        pooling_type=recipe.pooling.value,
    )
    tokenizer = add_tokenizer(blueprint)
    blueprint.table("token_embd.weight", tokenizer.tokens, recipe.embedding, deviation=EMBEDDING_DEVIATION)
    blueprint.exact("token_types.weight", 2, recipe.embedding, deviation=EMBEDDING_DEVIATION / 4)
    blueprint.exact("position_embd.weight", recipe.context_tokens, recipe.embedding, deviation=EMBEDDING_DEVIATION / 4)
    _add_layer_norm(blueprint, "token_embd_norm")
    for layer in range(recipe.layers):
        _add_layer(blueprint, f"blk.{layer}")
    if recipe.pooling is Pooling.RANK:
        blueprint.matrix("cls.weight", recipe.embedding, recipe.embedding)
        blueprint.bias("cls.bias", recipe.embedding)
        blueprint.matrix("cls.output.weight", 1, recipe.embedding, gain=SCORE_OUTPUT_GAIN)
        blueprint.bias("cls.output.bias", 1)
    return blueprint


def _add_layer(blueprint: Blueprint, block: str) -> None:
    embedding, inner = blueprint.recipe.embedding, blueprint.recipe.feed_forward
    gains = {"attn_q": SCORE_GAIN, "attn_k": SCORE_GAIN, "attn_v": 1.0, "attn_output": 1.0}
    for name, gain in gains.items():
        blueprint.matrix(f"{block}.{name}.weight", embedding, embedding, gain=gain)
        blueprint.bias(f"{block}.{name}.bias", embedding)
    _add_layer_norm(blueprint, f"{block}.attn_output_norm")
    blueprint.matrix(f"{block}.ffn_up.weight", inner, embedding)
    blueprint.bias(f"{block}.ffn_up.bias", inner)
    blueprint.matrix(f"{block}.ffn_down.weight", embedding, inner)
    blueprint.bias(f"{block}.ffn_down.bias", embedding)
    _add_layer_norm(blueprint, f"{block}.layer_output_norm")


def _add_layer_norm(blueprint: Blueprint, name: str) -> None:
    blueprint.norm(f"{name}.weight", blueprint.recipe.embedding)
    blueprint.bias(f"{name}.bias", blueprint.recipe.embedding)

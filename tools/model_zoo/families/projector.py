"""Image projectors: a small vision transformer, and a projection of its patches into a text model's embedding."""

import math

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.recipe import Recipe, Vision

COLOURS = 3
FEED_FORWARD_FACTOR = 2
POSITION_DEVIATION = 0.1


def compose_llava(recipe: Recipe) -> Blueprint:
    """Return the plan of a LLaVA projector: one row per patch, through two matrices; the encoder is CLIP's."""
    blueprint, vision = _begin(recipe, "mlp")
    patches = (vision.image_pixels // vision.patch_pixels) ** 2
    blueprint.exact("v.class_embd", vision.embedding, deviation=1.0)
    _add_patch_embedding(blueprint, vision, "v.patch_embd.weight")
    blueprint.exact("v.position_embd.weight", patches + 1, vision.embedding, deviation=POSITION_DEVIATION)
    _add_layer_norm(blueprint, "v.pre_ln", vision.embedding)
    _add_blocks(blueprint, vision)
    _add_linear(blueprint, "mm.0", recipe.embedding, vision.embedding)
    _add_linear(blueprint, "mm.2", recipe.embedding, recipe.embedding)
    return blueprint


def compose_gemma(recipe: Recipe) -> Blueprint:
    """Return the plan of a Gemma 3 projector: squares of patches are averaged; text sees an image as a whole."""
    blueprint, vision = _begin(recipe, "gemma3")
    patches = (vision.image_pixels // vision.patch_pixels) ** 2
    blueprint.describe(vision__projector__scale_factor=vision.merge, use_gelu=True)
    _add_patch_embedding(blueprint, vision, "v.patch_embd.weight")
    blueprint.bias("v.patch_embd.bias", vision.embedding)
    blueprint.exact("v.position_embd.weight", patches, vision.embedding, deviation=POSITION_DEVIATION)
    _add_blocks(blueprint, vision)
    _add_layer_norm(blueprint, "v.post_ln", vision.embedding)
    blueprint.norm("mm.soft_emb_norm.weight", vision.embedding)
    # Stored the other way round than all other matrices, as the format has it.
    blueprint.table(
        "mm.input_projection.weight", vision.embedding, recipe.embedding, deviation=1 / math.sqrt(vision.embedding)
    )
    return blueprint


def compose_qwen(recipe: Recipe) -> Blueprint:
    """Return the plan of a Qwen 2 VL projector: images of any size, four patches per row, rotary positions."""
    blueprint, vision = _begin(recipe, "qwen2vl_merger")
    merged = vision.embedding * vision.merge**2
    blueprint.describe(vision__spatial_merge_size=vision.merge)
    _add_patch_embedding(blueprint, vision, "v.patch_embd.weight")
    _add_patch_embedding(blueprint, vision, "v.patch_embd.weight.1")
    _add_blocks(blueprint, vision)
    _add_layer_norm(blueprint, "v.post_ln", vision.embedding)
    _add_linear(blueprint, "mm.0", merged, merged)
    _add_linear(blueprint, "mm.2", recipe.embedding, merged)
    return blueprint


def _begin(recipe: Recipe, projector_type: str) -> tuple[Blueprint, Vision]:
    vision = recipe.vision
    assert vision is not None
    blueprint = Blueprint(recipe, "clip")
    blueprint.describe(
        has_vision_encoder=True,
        projector_type=projector_type,
        vision__image_size=vision.image_pixels,
        vision__patch_size=vision.patch_pixels,
        vision__embedding_length=vision.embedding,
        vision__feed_forward_length=FEED_FORWARD_FACTOR * vision.embedding,
        vision__projection_dim=recipe.embedding,
        vision__block_count=vision.layers,
        vision__attention__head_count=vision.heads,
        vision__attention__layer_norm_epsilon=1e-5,
        vision__image_mean=[0.5, 0.5, 0.5],
        vision__image_std=[0.5, 0.5, 0.5],
    )
    return blueprint, vision


def _add_patch_embedding(blueprint: Blueprint, vision: Vision, name: str) -> None:
    pixels = COLOURS * vision.patch_pixels**2
    # Neighbouring pixels are alike, so their sum grows faster than that of independent ones: hence half the deviation.
    deviation = 0.5 / math.sqrt(pixels)
    shape = (vision.embedding, COLOURS, vision.patch_pixels, vision.patch_pixels)
    blueprint.table(name, *shape, deviation=deviation)


def _add_blocks(blueprint: Blueprint, vision: Vision) -> None:
    inner = FEED_FORWARD_FACTOR * vision.embedding
    for layer in range(vision.layers):
        block = f"v.blk.{layer}"
        _add_layer_norm(blueprint, f"{block}.ln1", vision.embedding)
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            _add_linear(blueprint, f"{block}.{name}", vision.embedding, vision.embedding)
        _add_layer_norm(blueprint, f"{block}.ln2", vision.embedding)
        _add_linear(blueprint, f"{block}.ffn_up", inner, vision.embedding)
        _add_linear(blueprint, f"{block}.ffn_down", vision.embedding, inner)


def _add_linear(blueprint: Blueprint, name: str, outputs: int, inputs: int) -> None:
    blueprint.matrix(f"{name}.weight", outputs, inputs)
    blueprint.bias(f"{name}.bias", outputs)


def _add_layer_norm(blueprint: Blueprint, name: str, length: int) -> None:
    blueprint.norm(f"{name}.weight", length)
    blueprint.bias(f"{name}.bias", length)

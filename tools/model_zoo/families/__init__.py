"""The architectures of the zoo: each family turns a recipe into GGUF entries and tensor plans."""

from tools.model_zoo.blueprint import Blueprint
from tools.model_zoo.families import bert, gemma, llama, mamba, phi, projector, qwen, short_convolution
from tools.model_zoo.recipe import Family, Recipe

COMPOSERS = {
    Family.LLAMA: llama.compose,
    Family.QWEN: qwen.compose,
    Family.QWEN_MOE: qwen.compose_moe,
    Family.QWEN_VISION: qwen.compose_vision,
    Family.GEMMA: gemma.compose,
    Family.PHI: phi.compose,
    Family.MAMBA: mamba.compose,
    Family.JAMBA: mamba.compose_hybrid,
    Family.LFM: short_convolution.compose,
    Family.BERT: bert.compose,
    Family.LLAVA_PROJECTOR: projector.compose_llava,
    Family.GEMMA_PROJECTOR: projector.compose_gemma,
    Family.QWEN_PROJECTOR: projector.compose_qwen,
}


def compose(recipe: Recipe) -> Blueprint:
    """Return the plan of the recipe's model file."""
    return COMPOSERS[recipe.family](recipe)

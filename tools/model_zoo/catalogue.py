"""The models of the zoo: tiny ones, one per shape that the runner treats differently, and big ones for benchmarks."""

from collections.abc import Mapping
from types import MappingProxyType

from tools.model_zoo.recipe import Family, Pooling, Recipe, TokenizerKind, Vision, WeightType
from tools.model_zoo.tokens import templates

TINY = (
    Recipe(
        name="dense",
        family=Family.LLAMA,
        about="Dense, grouped query attention, 8 layers; ChatML with tools.",
        layers=8,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="dense_wide_head",
        family=Family.LLAMA,
        about="Heads of 64 where embedding / heads is 32, like Mistral Nemo; SentencePiece with a leading space.",
        head=64,
        tokenizer=TokenizerKind.LLAMA,
        chat_template=templates.INSTRUCT,
    ),
    Recipe(
        name="tied",
        family=Family.LLAMA,
        about="The output matrix is the token table; weights in Q8_0, which the CPU repacks.",
        weights=WeightType.Q8_0,
        tied=True,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="moe",
        family=Family.QWEN_MOE,
        about="Mixture of experts, 2 of 8 per token, merged expert tensors; ChatML with thinking.",
        feed_forward=64,
        experts=8,
        experts_used=2,
        chat_template=templates.CHATML_THINKING,
    ),
    Recipe(
        name="swa",
        family=Family.GEMMA,
        about="Sliding window of 64 tokens in two of three layers, tied; Gemma's turns.",
        layers=6,
        rope_base=1_000_000.0,
        window_tokens=64,
        tied=True,
        tokenizer=TokenizerKind.GEMMA,
        chat_template=templates.GEMMA,
    ),
    Recipe(
        name="recurrent",
        family=Family.MAMBA,
        about="A state per sequence and no attention; a base model without a chat template.",
        tokenizer=TokenizerKind.LLAMA,
    ),
    Recipe(
        name="hybrid",
        family=Family.JAMBA,
        about="Two attention layers among recurrent ones; the state cannot be rolled back.",
        attention_layers=(1, 3),
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="hybrid_rollback",
        family=Family.LFM,
        about="Two attention layers among short convolutions; the state can be rolled back by snapshots.",
        layers=6,
        attention_layers=(2, 5),
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="rope_freqs",
        family=Family.LLAMA,
        about="One stored set of rotary frequency factors that all layers share, like Llama 3.1.",
        rope_base=500_000.0,
        rope_factors=True,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="rope_factors",
        family=Family.PHI,
        about="LongRoPE: short and long rotary factors, chosen by the context length (4096).",
        rope_factors=True,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="mrope",
        family=Family.QWEN_VISION,
        about="Positions with three components; the cache cannot be shifted. Text model of a vision pair.",
        mrope_sections=(4, 6, 6, 0),
        chat_template=templates.CHATML,
        projector="mmproj_mrope",
    ),
    Recipe(
        name="mmproj_mrope",
        family=Family.QWEN_PROJECTOR,
        about="Projector of `mrope`: images of any size, one row per 16 x 16 pixels.",
        tokenizer=None,
        vision=Vision(image_pixels=128, patch_pixels=8, merge=2, embedding=64, layers=2, heads=2),
    ),
    Recipe(
        name="vision",
        family=Family.LLAMA,
        about="Text model of a vision pair, causal over the rows of an image.",
        chat_template=templates.CHATML,
        projector="mmproj_vision",
    ),
    Recipe(
        name="mmproj_vision",
        family=Family.LLAVA_PROJECTOR,
        about="Projector of `vision`: 64 x 64 pixels, 64 rows.",
        tokenizer=None,
        vision=Vision(image_pixels=64, patch_pixels=8, merge=1, embedding=64, layers=3, heads=2),
    ),
    Recipe(
        name="vision_swa",
        family=Family.GEMMA,
        about="Text model of a vision pair that sees an image as a whole: non-causal, window of 512 tokens.",
        layers=6,
        rope_base=1_000_000.0,
        window_tokens=512,
        tied=True,
        tokenizer=TokenizerKind.GEMMA,
        chat_template=templates.GEMMA,
        projector="mmproj_vision_swa",
    ),
    Recipe(
        name="mmproj_vision_swa",
        family=Family.GEMMA_PROJECTOR,
        about="Projector of `vision_swa`: 256 x 256 pixels, 256 rows between two marker tokens.",
        tokenizer=None,
        vision=Vision(image_pixels=256, patch_pixels=8, merge=2, embedding=64, layers=2, heads=2),
    ),
    Recipe(
        name="embed_mean",
        family=Family.BERT,
        about="Encoder whose embedding is the mean of all outputs.",
        tokenizer=TokenizerKind.WORD_PIECE,
        context_tokens=1024,
        embedding=64,
        heads=2,
        feed_forward=128,
        pooling=Pooling.MEAN,
    ),
    Recipe(
        name="embed_cls",
        family=Family.BERT,
        about="Encoder whose embedding is the output of its first token.",
        tokenizer=TokenizerKind.WORD_PIECE,
        context_tokens=1024,
        embedding=64,
        heads=2,
        feed_forward=128,
        pooling=Pooling.CLS,
    ),
    Recipe(
        name="embed_last",
        family=Family.QWEN,
        about="Causal model whose embedding is the output of its last token.",
        pooling=Pooling.LAST,
    ),
    Recipe(
        name="reranker",
        family=Family.BERT,
        about="Encoder with a classification head: one score for a question and a document.",
        tokenizer=TokenizerKind.WORD_PIECE,
        context_tokens=1024,
        embedding=64,
        heads=2,
        feed_forward=128,
        pooling=Pooling.RANK,
    ),
)

BIG = (
    Recipe(
        name="57m",
        family=Family.LLAMA,
        about="57 million parameters, the size where overheads of the engine still show.",
        weights=WeightType.Q8_0,
        vocabulary_tokens=32000,
        embedding=512,
        layers=8,
        heads=8,
        kv_heads=2,
        feed_forward=1536,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="1b",
        family=Family.LLAMA,
        about="The shape of Llama 3.2 1B.",
        weights=WeightType.Q8_0,
        vocabulary_tokens=128256,
        context_tokens=131072,
        embedding=2048,
        layers=16,
        heads=32,
        kv_heads=8,
        feed_forward=8192,
        rope_base=500_000.0,
        rope_factors=True,
        tied=True,
        chat_template=templates.CHATML,
    ),
    Recipe(
        name="8b",
        family=Family.LLAMA,
        about="The shape of Llama 3.1 8B.",
        weights=WeightType.Q8_0,
        vocabulary_tokens=128256,
        context_tokens=131072,
        embedding=4096,
        layers=32,
        heads=32,
        kv_heads=8,
        feed_forward=14336,
        rope_base=500_000.0,
        rope_factors=True,
        chat_template=templates.CHATML,
    ),
)

ZOO: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in TINY})
SHAPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in BIG})


class UnknownModel(LookupError):
    """No recipe has this name; the message lists those that exist."""


def shape(name: str) -> Recipe:
    """Return the recipe of a big model; change it with `dataclasses.replace`.

    Raises:
        UnknownModel: choose one of the names in the message.
    """
    return _find(SHAPES, name)


def recipe_of(name: str) -> Recipe:
    """Return the recipe of a tiny or big model.

    Raises:
        UnknownModel: choose one of the names in the message.
    """
    return _find({**ZOO, **SHAPES}, name)


def _find(recipes: Mapping[str, Recipe], name: str) -> Recipe:
    if name not in recipes:
        raise UnknownModel(f"no model {name!r} in the zoo; there are: {', '.join(recipes)}")
    return recipes[name]

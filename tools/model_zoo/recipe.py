"""Recipe of a model of the zoo: a name, a family, and the numbers that give it its shape."""

from dataclasses import dataclass
from enum import Enum


class Family(Enum):
    """Family that turns a recipe into tensors: one module of `families` each."""

    LLAMA = "llama"
    QWEN = "qwen"
    QWEN_MOE = "qwen-moe"
    QWEN_VISION = "qwen-vision"
    GEMMA = "gemma"
    PHI = "phi"
    MAMBA = "mamba"
    JAMBA = "jamba"
    LFM = "lfm"
    BERT = "bert"
    LLAVA_PROJECTOR = "llava-projector"
    GEMMA_PROJECTOR = "gemma-projector"
    QWEN_PROJECTOR = "qwen-projector"


class WeightType(Enum):
    """Storage type of matrices. Vectors and tensors that llama.cpp wants exact stay F32."""

    F32 = "F32"
    F16 = "F16"
    Q8_0 = "Q8_0"


class Pooling(Enum):
    """Pooling of a text's outputs into one vector, as GGUF numbers it."""

    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


class TokenizerKind(Enum):
    """Tokenizer of a text model, one of the zoo's."""

    BYTE_LEVEL = "byte-level"
    LLAMA = "llama"
    GEMMA = "gemma"
    WORD_PIECE = "word-piece"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The shape of a projector's image encoder; its output rows have the text model's embedding length."""

    image_pixels: int  # per side
    patch_pixels: int  # per side
    merge: int  # this many patches per side become one row
    embedding: int
    layers: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a model's bytes. Sizes are counted in elements unless a name says otherwise.

    Attributes:
        head: length of one attention head; 0 means embedding / heads.
        attention_layers: layers that attend in a hybrid model; the others are recurrent.
        window_tokens: length of the sliding window; 0 means full attention.
        mrope_sections: rotary pairs per position component (time, height, width); empty means one position.
        rope_factors: whether per-dimension frequency factors are stored.
        projector: name of the recipe of the image projector that belongs to this text model.
    """

    name: str
    family: Family
    about: str
    seed: int = 1
    weights: WeightType = WeightType.F16
    tokenizer: TokenizerKind | None = TokenizerKind.BYTE_LEVEL
    chat_template: str | None = None
    vocabulary_tokens: int = 1024
    context_tokens: int = 32768
    embedding: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head: int = 0
    feed_forward: int = 256
    rope_base: float = 10000.0
    tied: bool = False
    experts: int = 0
    experts_used: int = 0
    attention_layers: tuple[int, ...] = ()
    window_tokens: int = 0
    mrope_sections: tuple[int, ...] = ()
    rope_factors: bool = False
    pooling: Pooling | None = None
    vision: Vision | None = None
    projector: str | None = None

    @property
    def head_length(self) -> int:
        """Length of one attention head."""
        return self.head or self.embedding // self.heads

    @property
    def query_length(self) -> int:
        """Length of all query heads together."""
        return self.heads * self.head_length

    @property
    def key_length(self) -> int:
        """Length of all key heads together, which is also that of the value heads."""
        return self.kv_heads * self.head_length

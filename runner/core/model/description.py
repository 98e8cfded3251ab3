"""Description of a model from its GGUF header. Pure: keys and tensors in, description out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from common.chat_templates import granted_capabilities
from common.errors import BadModelFile
from common.fill_in import fill_in_tokens

# Of a description: every process of the cluster gets those of all models, in messages of at most 32 MiB. Templates, the
# keys and the texts of control tokens of real models are a tenth of that, and those of models of speech half of it.
DETAILS_BYTES_MAX = 2 * 1024 * 1024

Scalar = str | int | float | bool
Value = Scalar | Sequence[Scalar]


class Capability(StrEnum):
    """Capability of a model, in the words of the API."""

    COMPLETION = "completion"
    TOOLS = "tools"
    THINKING = "thinking"
    INSERT = "insert"
    VISION = "vision"
    EMBEDDING = "embedding"
    RERANK = "rerank"


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


class Pooling(IntEnum):
    """Values of ARCH.pooling_type."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One row of the tensor table. `type_name` is ggml's, e.g. "q8_0"."""

    name: str
    type_name: str
    dimension_count: int
    element_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """As puna.v1.ModelDescription; empty strings and zeros mean "not given"."""

    architecture: str
    title: str
    parameter_count: int
    quantization: str
    context_tokens: int
    embedding_length: int
    layer_count: int
    vocabulary_size: int
    token_bytes_max: int
    capabilities: tuple[Capability, ...]
    chat_template: str
    bos_token: str
    eos_token: str
    special_tokens: tuple[str, ...]
    metadata: Mapping[str, Value]


# general.file_type -> name, as llama.cpp's enum llama_ftype. Mixtures have names that no single tensor type has.
# Source: llama.h of llama.cpp.
FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}

# Encoders without a generating head, whatever their pooling key says.
EMBEDDING_ARCHITECTURES = frozenset(
    {"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert", "eurobert"}
)
PROJECTOR_ARCHITECTURE = "clip"
_NAMED_TOKEN_KEYS = tuple(
    f"tokenizer.ggml.{name}_token_id"
    for name in ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask")
)


def describe(
    metadata: Mapping[str, Value],
    tensors: Sequence[TensorFacts],
    *,
    token_texts: Mapping[int, str],
    special_token_ids: Iterable[int],
    vocabulary_size: int,
    token_bytes_max: int = 0,
) -> Description:
    """Put the description together. `token_texts` needs to hold the special tokens and those named by metadata only."""
    architecture = _text(metadata, "general.architecture")
    template = _text(metadata, "tokenizer.chat_template")

    def named_token(key: str) -> str:
        index = metadata.get(key)
        return token_texts.get(index, "") if isinstance(index, int) else ""

    special_texts = tuple(dict.fromkeys(text for index in special_token_ids if (text := token_texts.get(index, ""))))
    return Description(
        architecture=architecture,
        title=_text(metadata, "general.name"),
        parameter_count=sum(tensor.element_count for tensor in tensors),
        quantization=_quantization(metadata, tensors),
        context_tokens=_number(metadata, f"{architecture}.context_length"),
        embedding_length=_number(metadata, f"{architecture}.embedding_length"),
        layer_count=_number(metadata, f"{architecture}.block_count"),
        vocabulary_size=vocabulary_size,
        # Other tokenizers drop blanks, or read an unknown word as one token.
        token_bytes_max=token_bytes_max if _text(metadata, "tokenizer.ggml.model") in ("gpt2", "llama") else 0,
        capabilities=_capabilities(metadata, architecture, template, special_texts),
        chat_template=template,
        bos_token=named_token("tokenizer.ggml.bos_token_id"),
        eos_token=named_token("tokenizer.ggml.eos_token_id"),
        special_tokens=special_texts,
        metadata=metadata,
    )


def too_long() -> BadModelFile:
    """Return the error of a header that says too much."""
    return BadModelFile(
        f"the texts of its keys and control tokens are more than a description may hold, {DETAILS_BYTES_MAX} bytes"
    )


def named_token_ids(metadata: Mapping[str, Value]) -> list[int]:
    """Ids of the tokens that metadata gives a role, e.g. begin and end of text."""
    ids = (metadata.get(key) for key in _NAMED_TOKEN_KEYS)
    return [index for index in ids if isinstance(index, int)]


def _capabilities(
    metadata: Mapping[str, Value], architecture: str, template: str, special_texts: tuple[str, ...]
) -> tuple[Capability, ...]:
    if architecture == PROJECTOR_ARCHITECTURE:
        return ()  # half of a vision model; answers nothing by itself
    pooling = metadata.get(f"{architecture}.pooling_type")
    if pooling == Pooling.RANK:
        return (Capability.RERANK,)
    if architecture in EMBEDDING_ARCHITECTURES or pooling in (Pooling.MEAN, Pooling.CLS, Pooling.LAST):
        return (Capability.EMBEDDING,)
    found = [Capability.COMPLETION]
    found += [Capability(name) for name in granted_capabilities(template)]
    if fill_in_tokens(metadata, special_texts) is not None:
        found.append(Capability.INSERT)
    return tuple(found)


def _quantization(metadata: Mapping[str, Value], tensors: Sequence[TensorFacts]) -> str:
    """Return the file's own word for its mixture, else the type that most matrix elements have."""
    file_type = metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.dimension_count > 1:  # vectors (norms, biases) stay in f32 whatever the quantization
            elements[tensor.type_name] += tensor.element_count
    return elements.most_common(1)[0][0].upper() if elements else ""


def _text(metadata: Mapping[str, Value], key: str) -> str:
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _number(metadata: Mapping[str, Value], key: str) -> int:
    """Return a count. Some models give one per layer: the largest then says how much there is."""
    value = metadata.get(key)
    if isinstance(value, (list, tuple)):
        value = max((item for item in value if isinstance(item, int)), default=0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

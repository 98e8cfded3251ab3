"""Header facts that the bytes of a model depend on, the basis of estimates. Keys and tensors in, facts out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.core.model.description import TensorFacts

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_(ch|)exps")  # as the engine names what may stay in host RAM
_STATE_BYTES = 4  # recurrent state is f32

_Number = Callable[[str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """As puna.v1.ModelMemory: blocks first, the output layer last; zeros mean "none", empty "not known"."""

    layer_weights_bytes: tuple[int, ...]
    layer_expert_bytes: tuple[int, ...]
    input_weights_bytes: int
    layer_key_width: tuple[int, ...]
    layer_value_width: tuple[int, ...]
    layer_state_bytes: tuple[int, ...]
    head_count: int
    expert_count: int
    expert_used_count: int


def describe_memory(
    metadata: Mapping[str, object], tensors: Sequence[TensorFacts], *, architecture: str
) -> ModelMemory:
    """Sort the tensors into layers and read off how wide a cell of the cache is."""

    def number(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    block_count = number("block_count")
    weights, experts = [0] * (block_count + 1), [0] * (block_count + 1)
    elements: list[dict[str, int]] = [{} for _ in range(block_count)]  # of each block, by the rest of the name
    input_bytes = tied_bytes = 0
    for tensor in tensors:
        found = _BLOCK.match(tensor.name)
        if found is not None and int(found[1]) < block_count:
            index = int(found[1])
            weights[index] += tensor.size_bytes
            elements[index][found[2]] = tensor.element_count
            if _EXPERTS.match(found[2]):
                experts[index] += tensor.size_bytes
        elif tensor.name.startswith("output"):
            weights[-1] += tensor.size_bytes
        else:
            input_bytes += tensor.size_bytes
            tied_bytes = tensor.size_bytes if tensor.name == "token_embd.weight" else tied_bytes
    is_pooled = f"{architecture}.pooling_type" in metadata  # answers vectors: there is no output layer
    if not is_pooled and not any(tensor.name == "output.weight" for tensor in tensors):
        weights[-1] += tied_bytes  # the output is a copy of the embedding, wherever it lies
    widths = [_widths(block, number) for block in elements]
    return ModelMemory(
        layer_weights_bytes=tuple(weights),
        layer_expert_bytes=tuple(experts) if any(experts) else (),
        input_weights_bytes=input_bytes,
        layer_key_width=tuple(key for key, _ in widths),
        layer_value_width=tuple(value for _, value in widths),
        layer_state_bytes=tuple(_state_bytes(block, number) for block in elements),
        head_count=number("attention.head_count"),
        expert_count=number("expert_count"),
        expert_used_count=number("expert_used_count"),
    )


def _widths(elements: Mapping[str, int], number: _Number) -> tuple[int, int]:
    """Elements of keys and values that one cell of a block holds.

    From the shapes of the matrices where keys and values have their own: they are right where heads differ by block.
    """
    width = number("embedding_length")
    if not any(name.startswith("attn_") and name.endswith("weight") for name in elements):
        return 0, 0
    rank = number("attention.kv_lora_rank")
    if rank and "attn_kv_a_mqa.weight" in elements:
        return rank + number("rope.dimension_count"), 0
    keys, values = elements.get("attn_k.weight", 0), elements.get("attn_v.weight", 0)
    if width and keys:
        return keys // width, (values or keys) // width
    heads = number("attention.head_count")
    shared = number("attention.head_count_kv") or heads
    each = width // heads if heads else 0
    has_keys = "attn_qkv.weight" in elements or "attn_k.weight" in elements
    if not has_keys:
        return 0, 0
    return shared * (number("attention.key_length") or each), shared * (number("attention.value_length") or each)


def _state_bytes(elements: Mapping[str, int], number: _Number) -> int:
    """Return the bytes of one slot in a recurrent block: the window of its convolution and its state."""
    if not any(name.startswith("ssm_") for name in elements):
        return 0
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    window = max(0, number("ssm.conv_kernel") - 1) * (inner + 2 * number("ssm.group_count") * state)
    return _STATE_BYTES * (window + inner * state)

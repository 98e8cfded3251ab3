"""Facts about a model's bytes in its header: the base of plans before any measurement, and of estimates."""

from dataclasses import dataclass

# Without any facts the cache is taken for so much of the weights, as people do by hand.
CACHE_SHARE_UNKNOWN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Per layer: block 0 first, the output layer last. Widths and states are per block."""

    architecture: str = ""
    embedding_length: int = 0
    vocabulary_size: int = 0
    head_count: int = 0
    layer_weights_bytes: tuple[int, ...] = ()
    layer_expert_bytes: tuple[int, ...] = ()  # part of the weights; empty: no experts
    input_weights_bytes: int = 0
    layer_key_width: tuple[int, ...] = ()
    layer_value_width: tuple[int, ...] = ()
    layer_state_bytes: tuple[int, ...] = ()
    expert_count: int = 0
    expert_used_count: int = 0

    @property
    def has_experts(self) -> bool:
        """Return True if some of the weights are experts, which may stay in host RAM."""
        return any(self.layer_expert_bytes)

    def bytes_per_token(self, layer: int) -> int:
        """Return the bytes of weights that one token reads of a layer: all but its unused experts."""
        weights = self.layer_weights_bytes[layer]
        if not self.layer_expert_bytes or not self.expert_count:
            return weights
        experts = self.layer_expert_bytes[layer]
        return weights - experts + experts * self.expert_used_count // self.expert_count


def facts_of_size(size_bytes: int, block_count: int) -> ModelFacts:
    """Return facts of a file whose header has none: every layer is as large as any other."""
    layers = block_count + 1
    return ModelFacts(layer_weights_bytes=(size_bytes // layers,) * layers)

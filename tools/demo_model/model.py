"""A llama in torch, computed as llama.cpp computes the architecture "llama".

RMSNorm before attention and feed-forward, grouped-query attention, SwiGLU, tied embeddings, no biases. The rotary
embedding turns neighbouring pairs (0, 1), (2, 3), … as llama.cpp does for "llama", so the weights go into the GGUF as
they are: the permutation that converters apply to Hugging Face checkpoints is for the half-split layout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.demo_model.tokenizer import VOCABULARY_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the model. Heads of 64 are what every attention kernel of llama.cpp supports."""

    vocabulary: int = VOCABULARY_TOKENS
    layers: int = 8
    width: int = 128
    feed_forward: int = 384
    heads: int = 2
    key_value_heads: int = 1
    context_tokens: int = 2048
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_width(self) -> int:
        """Return the number of values per head."""
        return self.width // self.heads


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a projection that keeps the variance of its input."""
    projection = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(projection.weight, std=inputs**-0.5)
    return projection


def residual_linear(inputs: int, shape: Shape) -> nn.Linear:
    """Return a projection whose sum over all layers keeps the variance: it is added to the residual stream."""
    projection = nn.Linear(inputs, shape.width, bias=False)
    nn.init.normal_(projection.weight, std=(2 * inputs * shape.layers) ** -0.5)
    return projection


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        key_value_width = shape.key_value_heads * shape.head_width
        self.query = linear(shape.width, shape.width)
        self.key = linear(shape.width, key_value_width)
        self.value = linear(shape.width, key_value_width)
        self.output = residual_linear(shape.width, shape)

    def forward(self, hidden: Tensor, rotation: Tensor) -> Tensor:
        """Map float32[rows, tokens, width] to the same shape."""
        rows, tokens, width = hidden.shape
        split = (rows, tokens, -1, self.shape.head_width)
        query = rotate(self.query(hidden).view(split), rotation).transpose(1, 2)
        key = rotate(self.key(hidden).view(split), rotation).transpose(1, 2)
        value = self.value(hidden).view(split).transpose(1, 2)
        groups = self.shape.heads // self.shape.key_value_heads
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.output(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return projected


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = linear(shape.width, shape.feed_forward)
        self.up = linear(shape.width, shape.feed_forward)
        self.down = residual_linear(shape.feed_forward, shape)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map float32[rows, tokens, width] to the same shape."""
        projected: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return projected


class Layer(nn.Module):
    """One transformer block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.feed_forward = FeedForward(shape)

    def forward(self, hidden: Tensor, rotation: Tensor) -> Tensor:
        """Map float32[rows, tokens, width] to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        result: Tensor = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return result


class Llama(nn.Module):
    """The whole model; its output matrix is its embedding matrix."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.rotation: Tensor
        self.register_buffer("rotation", rotations(shape), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64[rows, tokens] to logits float32[rows, tokens, vocabulary]."""
        hidden = self.embedding(tokens)
        rotation = self.rotation[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, rotation)
        return functional.linear(self.norm(hidden), self.embedding.weight)


def rotations(shape: Shape) -> Tensor:
    """Return cosines and sines of every position and pair: float32[context, head width / 2, 2]."""
    exponents = torch.arange(0, shape.head_width, 2, dtype=torch.float64) / shape.head_width
    angles = torch.outer(torch.arange(shape.context_tokens, dtype=torch.float64), shape.rope_base**-exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=-1).float()


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn each neighbouring pair of float32[rows, tokens, heads, head width] by its position's angle."""
    pairs = heads.view(*heads.shape[:-1], -1, 2)
    cosine, sine = rotation[:, None, :, 0], rotation[:, None, :, 1]
    first, second = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
    return turned.flatten(-2)

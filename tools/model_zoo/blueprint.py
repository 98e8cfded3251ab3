"""A model between recipe and file: its GGUF entries and the plan of each tensor, without any data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tools.model_zoo.noise import BLOCK_ELEMENTS, Fill, random_tensor, tensor_bytes
from tools.model_zoo.recipe import Recipe, WeightType
from tools.model_zoo.tokens.tokenizer import Tokenizer, Value

NORM_DEVIATION = 0.05
BIAS_DEVIATION = 0.05
# Logits of trained models spread by two to three; with less, sampling would be a draw from all tokens.
LOGIT_DEVIATION = 3.0
NO_FILL = Fill()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """A tensor to be written.

    Attributes:
        shape: row-major, the reverse of what ggml prints.
        values: one row of constants, which replaces the noise.
    """

    name: str
    shape: tuple[int, ...]
    weights: WeightType
    fill: Fill = NO_FILL
    values: tuple[float, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the data in the file, without padding."""
        return tensor_bytes(self.elements, self.weights)

    def chunks(self, seed_text: str) -> Iterator[bytes]:
        """Yield the data in file order."""
        if self.values:
            yield np.asarray(self.values, dtype="<f4").tobytes() * (self.elements // len(self.values))
            return
        columns = self.shape[-1]
        yield from random_tensor(f"{seed_text}/{self.name}", self.elements // columns, columns, self.weights, self.fill)


@dataclass(slots=True)
class Blueprint:
    """Collects what a family says about a model, in file order."""

    recipe: Recipe
    architecture: str
    metadata: list[tuple[str, Value]] = field(default_factory=list)
    tensors: list[TensorPlan] = field(default_factory=list)

    def describe(self, **entries: Value) -> None:
        """Add entries of the architecture; a double underscore in a name stands for a dot."""
        for name, value in entries.items():
            self.metadata.append((f"{self.architecture}.{name.replace('__', '.')}", value))

    def add_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Add the tokenizer and, where the recipe has one, the chat template."""
        self.metadata.extend(tokenizer.metadata)
        if self.recipe.chat_template is not None:
            self.metadata.append(("tokenizer.chat_template", self.recipe.chat_template))

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Add a matrix that keeps the size of what it multiplies: deviation gain / sqrt(inputs)."""
        self.table(name, *shape, deviation=gain / math.sqrt(shape[-1]))

    def table(self, name: str, *shape: int, deviation: float, weak_rows: tuple[int, int] = (0, 0)) -> None:
        """Add rows of a given deviation, stored as the recipe says where the rows can be cut into blocks."""
        weights = self.recipe.weights
        if weights is WeightType.Q8_0 and shape[-1] % BLOCK_ELEMENTS != 0:
            weights = WeightType.F16
        fill = Fill(deviation=deviation, weak_rows=weak_rows)
        self.tensors.append(TensorPlan(name=name, shape=shape, weights=weights, fill=fill))

    def exact(self, name: str, *shape: int, mean: float = 0.0, deviation: float) -> None:
        """Add a tensor that llama.cpp wants in F32."""
        fill = Fill(mean=mean, deviation=deviation)
        self.tensors.append(TensorPlan(name=name, shape=shape, weights=WeightType.F32, fill=fill))

    def norm(self, name: str, length: int, *, mean: float = 1.0, random_signs: bool = False) -> None:
        """Add a norm's weight, near one."""
        fill = Fill(mean=mean, deviation=NORM_DEVIATION, random_signs=random_signs)
        self.tensors.append(TensorPlan(name=name, shape=(length,), weights=WeightType.F32, fill=fill))

    def bias(self, name: str, length: int, *, mean: float = 0.0) -> None:
        """Add a bias, near zero or near the mean."""
        self.exact(name, length, mean=mean, deviation=BIAS_DEVIATION)

    def constants(self, name: str, values: tuple[float, ...], *, rows: int = 0) -> None:
        """Add a vector of given values, or a matrix with that many such rows."""
        shape = (rows, len(values)) if rows else (len(values),)
        self.tensors.append(TensorPlan(name=name, shape=shape, weights=WeightType.F32, values=values))

"""Models that pool, and the sizes of their vectors."""

import pytest

from common.spec.layout import Layout
from runner.core.model.description import Pooling, Value
from runner.core.pooled.pooling import PARALLEL_INPUTS, pooled_layout, pooling_of


@pytest.mark.behaviour("B-93")
@pytest.mark.parametrize(
    ("metadata", "pooling"),
    [
        ({"general.architecture": "llama"}, None),
        ({"general.architecture": "llama", "llama.pooling_type": 0}, None),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, Pooling.LAST),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, Pooling.RANK),
        ({"general.architecture": "bert", "bert.pooling_type": 1}, Pooling.MEAN),
        ({"general.architecture": "bert", "bert.pooling_type": 2}, Pooling.CLS),
        # Encoders never generate: the mean where the file does not say, and its own word where it does.
        ({"general.architecture": "nomic-bert"}, Pooling.MEAN),
        ({"general.architecture": "bert", "bert.pooling_type": 0}, Pooling.NONE),
        # Nonsense, other models' keys, and halves of vision models.
        ({"general.architecture": "llama", "llama.pooling_type": 99}, None),
        ({"general.architecture": "llama", "llama.pooling_type": "mean"}, None),
        ({"general.architecture": "llama", "bert.pooling_type": 1}, None),
        ({"general.architecture": "clip", "clip.pooling_type": 1}, None),
        ({}, None),
    ],
)
def test_the_file_says_how_a_model_pools(metadata: dict[str, Value], pooling: Pooling | None) -> None:
    assert pooling_of(metadata) is pooling


def layout(*, context_tokens: int, slots: int) -> Layout:
    return Layout(context_tokens=context_tokens, slots=slots, batch_tokens=512)


@pytest.mark.behaviour("B-90")
@pytest.mark.parametrize("context_tokens", [64, 512, 600, 8192])
def test_a_batch_of_a_pooled_model_is_a_context(context_tokens: int) -> None:
    pooled = pooled_layout(layout(context_tokens=context_tokens, slots=8), recurrent=False)
    assert (pooled.batch_tokens, pooled.context_tokens) == (context_tokens, context_tokens)


@pytest.mark.behaviour("B-92")
def test_many_inputs_share_a_call_unless_each_has_a_state() -> None:
    assert pooled_layout(layout(context_tokens=512, slots=8), recurrent=False).slots == PARALLEL_INPUTS
    assert pooled_layout(layout(context_tokens=512, slots=200), recurrent=False).slots == 200
    assert pooled_layout(layout(context_tokens=512, slots=8), recurrent=True).slots == 8
    assert pooled_layout(layout(context_tokens=5, slots=8), recurrent=False).slots == 5

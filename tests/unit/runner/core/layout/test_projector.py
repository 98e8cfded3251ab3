"""Sizes of a projector's images."""

import pytest

from common.spec.layout import Layout
from runner.core.layout.projector import largest_graph_bytes, whole_image_rows, widened


@pytest.mark.behaviour("B-102")
def test_a_layout_is_widened_to_the_largest_image_that_must_stay_whole() -> None:
    gemma = {
        "clip.projector_type": "gemma3",
        "clip.vision.image_size": 896,
        "clip.vision.patch_size": 14,
    }
    assert whole_image_rows(gemma) == 256
    assert whole_image_rows({**gemma, "clip.vision.patch_size": 0}) == 0
    assert whole_image_rows({"clip.vision.projector_type": "gemma4v"}) == 1120
    assert whole_image_rows({"clip.projector_type": "mlp"}) == 0
    assert widened(Layout(batch_tokens=128), 256).batch_tokens == 256
    assert widened(Layout(batch_tokens=512), 256).batch_tokens == 512
    assert widened(Layout(batch_tokens=512, ubatch_tokens=64), 256).ubatch_tokens == 256


def test_the_graph_of_the_largest_image_follows_the_context() -> None:
    assert largest_graph_bytes(2116_000, kind="qwen2vl_merger", context_tokens=100_000) == 4096_000
    assert largest_graph_bytes(2116_000, kind="qwen2vl_merger", context_tokens=1000) == 1000_000
    assert largest_graph_bytes(5000, kind="mlp", context_tokens=1000) == 5000

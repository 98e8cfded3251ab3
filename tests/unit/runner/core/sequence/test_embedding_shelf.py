"""Cache of image embeddings: kept entries, and the salts that may read them."""

import pytest

from common.spec.layout import Layout
from runner.core.layout.projector import largest_graph_bytes, whole_image_rows, widened
from runner.core.sequence.embedding_shelf import EmbeddingShelf
from runner.core.sequence.media import EncodedImage
from tests.unit.runner.fake_images import encoded, image


def rows(name: str) -> tuple[bytes, EncodedImage]:
    picture = image(name)
    return picture.hash, encoded(picture)


@pytest.mark.behaviour("B-105")
def test_an_image_lives_while_anybody_uses_it() -> None:
    shelf = EmbeddingShelf()
    key, value = rows("one")
    assert shelf.use(key, 1) is None
    assert shelf.use(key, 2) is None
    assert shelf.put(key, value)
    assert shelf.use(key, 1) is value
    assert not shelf.leave(key, 1)
    assert shelf.live == 1
    assert shelf.leave(key, 2)
    assert (shelf.live, shelf.kept) == (0, 1)
    assert not shelf.leave(key, 2)
    assert shelf.use(key, 3) is value
    assert (shelf.live, shelf.kept) == (1, 0)


@pytest.mark.behaviour("B-105")
def test_the_last_few_are_kept_and_the_oldest_goes() -> None:
    shelf = EmbeddingShelf(images_max=2)
    for name in ("one", "two", "three"):
        key, value = rows(name)
        shelf.use(key, 1)
        shelf.put(key, value)
        shelf.leave(key, 1)
    assert shelf.kept == 2
    assert shelf.use(rows("one")[0], 2) is None
    assert shelf.use(rows("three")[0], 2) is not None


@pytest.mark.behaviour("B-105")
def test_what_is_kept_is_bounded_in_bytes() -> None:
    key, value = rows("one")
    shelf = EmbeddingShelf(bytes_max=value.size_bytes - 1)
    shelf.use(key, 1)
    shelf.put(key, value)
    assert shelf.use(key, 1) is value  # what is in use is not what is kept
    shelf.leave(key, 1)
    assert (shelf.live, shelf.kept) == (0, 0)


@pytest.mark.behaviour("B-105")
def test_rows_that_nobody_wants_any_more_are_not_taken() -> None:
    shelf = EmbeddingShelf()
    key, value = rows("one")
    shelf.use(key, 1)
    shelf.leave(key, 1)
    assert not shelf.put(key, value)
    assert (shelf.live, shelf.kept) == (0, 0)


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

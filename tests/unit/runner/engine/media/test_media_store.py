"""Images that sequences wait for or use, and what is kept of them."""

import pytest

from runner.engine.media.media_encoder import EncodingDone, EncodingJob
from runner.engine.media.media_store import MediaStore
from tests.unit.runner.fake_images import encoded, image


def answered(store: MediaStore, jobs: list[EncodingJob], name: str) -> None:
    """Ask for an image, answer the job, and release it."""
    picture = image(name)
    assert store.unit(picture, 0, 1) is None
    store.take_in(EncodingDone(jobs[-1], encoded(picture), None))
    assert store.unit(picture, 0, 1) is not None  # what is in use is not what is kept
    store.leave(picture, 1)


@pytest.mark.behaviour("B-105")
def test_an_image_lives_while_a_sequence_uses_it() -> None:
    jobs: list[EncodingJob] = []
    store = MediaStore(jobs.append)
    picture = image("one")
    value = encoded(picture)
    assert store.unit(picture, 0, 1) is None
    assert store.unit(picture, 0, 2) is None
    assert len(jobs) == 1
    store.take_in(EncodingDone(jobs[0], value, None))
    assert store.unit(picture, 0, 1) is value.units[0]
    store.leave(picture, 1)
    assert (store.live, store.kept) == (1, 0)
    store.leave(picture, 2)
    assert (store.live, store.kept) == (0, 1)
    store.leave(picture, 2)
    assert (store.live, store.kept) == (0, 1)
    assert store.unit(picture, 0, 3) is value.units[0]
    assert (store.live, store.kept) == (1, 0)
    assert len(jobs) == 1


@pytest.mark.behaviour("B-105")
def test_the_last_few_are_kept_and_the_oldest_goes() -> None:
    jobs: list[EncodingJob] = []
    store = MediaStore(jobs.append, images_max=2)
    for name in ("one", "two", "three"):
        answered(store, jobs, name)
    assert store.kept == 2
    assert store.unit(image("one"), 0, 2) is None
    assert store.unit(image("three"), 0, 2) is not None


@pytest.mark.behaviour("B-105")
def test_what_is_kept_is_bounded_in_bytes() -> None:
    jobs: list[EncodingJob] = []
    store = MediaStore(jobs.append, bytes_max=encoded(image("one")).size_bytes - 1)
    answered(store, jobs, "one")
    assert (store.live, store.kept) == (0, 0)


@pytest.mark.behaviour("B-105")
def test_rows_that_no_sequence_wants_any_more_are_not_taken() -> None:
    jobs: list[EncodingJob] = []
    store = MediaStore(jobs.append)
    picture = image("one")
    assert store.unit(picture, 0, 1) is None
    store.leave(picture, 1)
    assert jobs[0].cancelled
    store.take_in(EncodingDone(jobs[0], encoded(picture), None))
    assert (store.live, store.kept) == (0, 0)

"""Files that Pillow writes, of one frame and of several; and files that are made to be hard to look at."""

import io
import time

import pytest
from PIL import Image

from gateway.core.request.images import is_animated

FORMATS = ("GIF", "PNG", "WEBP")
COLOURS = ("red", "green", "blue")


def image_file(form: str, frames: int, **options: object) -> bytes:
    file = io.BytesIO()
    first, *others = [Image.new("RGB", (40, 30), colour) for colour in COLOURS[:frames]]
    first.save(file, form, save_all=frames > 1, append_images=others, **options)
    return file.getvalue()


@pytest.mark.parametrize("form", [*FORMATS, "JPEG", "BMP"])
def test_one_frame_is_no_animation(form: str) -> None:
    assert not is_animated(image_file(form, 1))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("frames", [2, 3])
def test_several_frames_are_an_animation(form: str, frames: int) -> None:
    assert is_animated(image_file(form, frames, duration=40))


def test_a_comment_and_a_palette_are_no_frames() -> None:
    file = io.BytesIO()
    Image.effect_noise((200, 200), 60).convert("P").save(file, "GIF", comment=b"no frame" * 90)
    assert not is_animated(file.getvalue())


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_cut_anywhere_is_judged_by_what_is_there(form: str) -> None:
    whole = image_file(form, 3, duration=40)
    for end in range(len(whole)):
        is_animated(whole[:end])
        is_animated(image_file(form, 1)[:end])


def test_a_file_of_very_many_pieces_is_not_followed_to_its_end() -> None:
    """10 MB of blocks of one byte; and of chunks without contents."""
    head = image_file("GIF", 1)[:13]
    comment = b"\x21\xfe" + b"\x01x" * 5_000_000 + b"\0"
    png = image_file("PNG", 1)[:33] + b"\0\0\0\0tEXt\0\0\0\0" * 800_000
    started_s = time.process_time()
    assert is_animated(head[:10] + b"\0\0\0" + comment)
    assert is_animated(png)
    assert time.process_time() - started_s < 0.5

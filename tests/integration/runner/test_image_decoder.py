"""Image files to pixels, in a process that hostile files may kill."""

import io
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from common.errors import InvalidRequest
from common.image_file import ImageFormat, ImageHeader, read_image_header
from runner.engine.media.image_decoder import WORKER_PATH, ImageDecoder
from tests.integration.runner.pictures import Pixels, image_file, picture


@pytest.fixture
def decoder() -> Iterator[ImageDecoder]:
    decoder = ImageDecoder()
    yield decoder
    decoder.close()


def decoded(decoder: ImageDecoder, file: bytes) -> Pixels:
    header = read_image_header(file)
    return np.frombuffer(decoder.decode(file, header), np.uint8).reshape(header.height, header.width, 3)


@pytest.mark.parametrize("form", ["PNG", "BMP", "WEBP"])
def test_what_a_lossless_file_holds_comes_out(decoder: ImageDecoder, form: str) -> None:
    pixels = picture(1, width=70, height=41)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, lossless=True)
    assert np.array_equal(decoded(decoder, file.getvalue()), pixels)


@pytest.mark.parametrize("form", ["JPEG", "GIF"])
def test_what_a_lossy_file_holds_comes_out_nearly(decoder: ImageDecoder, form: str) -> None:
    pixels = np.full((40, 70, 3), (200, 30, 90), np.uint8)
    assert np.abs(decoded(decoder, image_file(pixels, form)).astype(int) - pixels).max() <= 4


def test_transparency_is_ignored_and_sixteen_bits_are_scaled(decoder: ImageDecoder) -> None:
    clear = np.dstack([picture(1, width=8, height=8), np.zeros((8, 8), np.uint8)])
    assert np.array_equal(decoded(decoder, image_file(clear)), clear[:, :, :3])
    deep = np.array([[0, 0x4000], [0x8000, 0xFFFF]], np.uint16)
    assert decoded(decoder, image_file(deep))[:, :, 0].tolist() == [[0, 0x40], [0x80, 0xFF]]


def test_the_first_frame_of_an_animation_counts(decoder: ImageDecoder) -> None:
    frames = [Image.fromarray(np.full((6, 6, 3), value, np.uint8)) for value in (10, 200)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    assert decoded(decoder, file.getvalue()).max() < 30


def test_ten_thousand_frames_cost_one(decoder: ImageDecoder) -> None:
    """IN14."""
    file = image_file(np.full((6, 6, 3), 10, np.uint8), "GIF")
    begin = file.index(b"\x2c\0\0\0\0")
    many = file[:-1] + file[begin:-1] * 10_000 + file[-1:]
    assert decoded(decoder, many).max() < 30


def test_what_a_camera_writes_beside_an_image_is_passed_over_within_bounds(decoder: ImageDecoder) -> None:
    """IN14: EXIF that points nowhere, many times; and so often that no frame comes soon."""
    file = image_file(np.full((40, 70, 3), 99, np.uint8), "JPEG")
    exif = b"\xff\xe1" + struct.pack(">H", 1002) + b"Exif\0\0II*\0" + b"\xff" * 990
    assert decoded(decoder, file[:2] + exif * 100 + file[2:]).shape == (40, 70, 3)
    with pytest.raises(InvalidRequest, match="no frame header"):
        decoded(decoder, file[:2] + exif * 5_000 + file[2:])


@pytest.mark.parametrize("form", [form.value for form in ImageFormat])
def test_a_file_that_is_cut_off_or_damaged_is_refused_and_the_next_one_decoded(
    decoder: ImageDecoder, form: str
) -> None:
    file = image_file(picture(1), form)
    with pytest.raises(InvalidRequest):
        decoded(decoder, file[: len(file) // 2])
    assert decoded(decoder, file).shape == (96, 160, 3)


def test_a_size_that_only_the_header_has_is_refused(decoder: ImageDecoder) -> None:
    header = ImageHeader(format=ImageFormat.PNG, width=4000, height=4000)
    with pytest.raises(InvalidRequest, match="differ in size"):
        decoder.decode(image_file(picture(1)), header)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "stuck"])
def test_a_worker_that_is_lost_costs_one_image(how: signal.Signals) -> None:
    decoder = ImageDecoder(wall_s=1.0)
    try:
        file = image_file(picture(1))
        assert decoded(decoder, file).size
        assert decoder._process is not None
        os.kill(decoder._process.pid, how)
        with pytest.raises(InvalidRequest, match="within its limits"):
            decoded(decoder, file)
        assert decoded(decoder, file).size
    finally:
        decoder.close()


CONFINED = """
import ctypes, importlib.util, os, socket, sys
spec = importlib.util.spec_from_file_location("worker", sys.argv[1])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
library = ctypes.CDLL(None, use_errno=True)
if library.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)) < 1:
    print("no landlock")
    sys.exit()
worker.limit_child(library)
for name, attempt in (
    ("read", lambda: open("/etc/passwd")),
    ("write", lambda: open("/tmp/left-behind", "w")),
    ("list", lambda: os.listdir("/")),
    ("run", lambda: os.execv("/bin/true", ["true"])),
):
    try:
        attempt()
        print(name, "allowed")
    except OSError:
        pass
print("done")
"""


def test_the_child_that_decodes_reaches_no_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, str(WORKER_PATH)], capture_output=True, text=True, check=True, timeout=60
    )
    if done.stdout.strip() == "no landlock":
        pytest.skip("this kernel has no Landlock")
    assert done.stdout.split() == ["done"]

"""Sizes of images from their first bytes."""

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from common.errors import InvalidRequest
from common.image_file import (
    IMAGE_BYTES_MAX,
    IMAGES_MAX,
    ImageFormat,
    check_image_count,
    read_image_header,
)


def file_of(form: str, width: int, height: int, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (1, 2, 3)).save(file, form, **options)
    return file.getvalue()


FILES = {
    "png": (file_of("PNG", 31, 17), ImageFormat.PNG),
    "jpeg": (file_of("JPEG", 31, 17), ImageFormat.JPEG),
    "progressive jpeg": (file_of("JPEG", 31, 17, progressive=True), ImageFormat.JPEG),
    "jpeg with a long comment": (file_of("JPEG", 31, 17, comment=b"x" * 60_000), ImageFormat.JPEG),
    "bmp": (file_of("BMP", 31, 17), ImageFormat.BMP),
    "gif": (file_of("GIF", 31, 17), ImageFormat.GIF),
    "webp": (file_of("WEBP", 31, 17), ImageFormat.WEBP),
    "lossless webp": (file_of("WEBP", 31, 17, lossless=True), ImageFormat.WEBP),
    "extended webp": (file_of("WEBP", 31, 17, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0"), ImageFormat.WEBP),
}


@pytest.mark.parametrize("name", FILES)
def test_format_and_size_are_read_without_decoding(name: str) -> None:
    data, form = FILES[name]
    header = read_image_header(data)
    assert (header.format, header.width, header.height) == (form, 31, 17)


def test_a_bitmap_may_have_its_rows_from_the_top() -> None:
    data = bytearray(FILES["bmp"][0])
    data[22:26] = struct.pack("<i", -17)
    assert read_image_header(bytes(data)).height == 17


@pytest.mark.parametrize("name", FILES)
def test_a_header_that_is_cut_off_is_refused(name: str) -> None:
    data, _ = FILES[name]
    for length in (1, 3, 9):
        with pytest.raises(InvalidRequest):
            read_image_header(data[:length])


def test_a_file_over_a_limit_is_refused_by_its_header_alone() -> None:
    huge = bytearray(FILES["png"][0])
    huge[16:24] = struct.pack(">II", 60_000, 60_000)
    with pytest.raises(InvalidRequest, match="60000 x 60000 pixels"):
        read_image_header(bytes(huge))
    huge[16:24] = struct.pack(">II", 0, 5)
    with pytest.raises(InvalidRequest, match="no size"):
        read_image_header(bytes(huge))
    with pytest.raises(InvalidRequest, match="at most 10485760"):
        read_image_header(FILES["png"][0] + bytes(IMAGE_BYTES_MAX))


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"%PDF-1.4 " * 10, b"RIFF\0\0\0\0WAVEfmt " + bytes(20)])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_image_header(data)
    assert caught.value.param == "images"


def test_a_request_has_a_bounded_number_of_images() -> None:
    check_image_count(IMAGES_MAX)
    with pytest.raises(InvalidRequest, match="8 images, this one has 9"):
        check_image_count(IMAGES_MAX + 1)


@given(st.sampled_from(sorted(FILES)), st.binary(max_size=64), st.integers(0, 64))
def test_no_bytes_are_anything_but_an_image_or_refused(name: str, noise: bytes, place: int) -> None:
    data, _ = FILES[name]
    damaged = data[:place] + noise + data[place + len(noise) :]
    try:
        header = read_image_header(damaged)
    except InvalidRequest:
        return
    assert header.width > 0
    assert header.height > 0

"""Files that belong to a question: images for models that see, text for all. Pure."""

import base64
from dataclasses import dataclass

_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One file: an image as base64, or its text; the other one is None."""

    image: str | None = None
    text: str | None = None


def attachment_of(name: str, data: bytes) -> Attachment:
    """What a file is, by what is in it.

    Raises:
        ValueError: neither an image that models are shown, nor text in UTF-8.
    """
    if is_image(data):
        return Attachment(image=base64.b64encode(data).decode("ascii"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is neither an image (PNG, JPEG, GIF, BMP, WebP) nor text in UTF-8") from error
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} has no text in it")
    return Attachment(text=f"{name}:\n\n{text.strip()}")


def is_image(data: bytes) -> bool:
    """True for formats that the gateway takes, told by their first bytes."""
    return data.startswith(_IMAGE_STARTS) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")

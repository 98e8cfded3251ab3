"""Images of requests: what they are, where they stand, and that no text becomes one."""

import base64
import re

import pytest

from common.errors import InvalidRequest, UnsupportedCapability
from common.image_file import IMAGE_BYTES_MAX, IMAGES_MAX
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.capabilities import check_capabilities
from gateway.core.prepare.literals import Literal, LiteralGuard, Picture, SpecialTexts, Text
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt, images_of
from gateway.core.request.images import (
    PlacedImage,
    RequestImage,
    before_text,
    check_images,
    decode_image,
    place_by_markers,
    split_at_images,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
TEXT = base64.b64encode(PNG).decode()
FILES = [PNG + bytes([number]) for number in range(2)]
ONE, TWO = (RequestImage(base64.b64encode(file).decode()) for file in FILES)


@pytest.mark.parametrize("text", [TEXT, f"data:image/png;base64,{TEXT}", f"DATA:;base64,{TEXT}"])
def test_an_image_is_base64_bare_or_as_a_data_uri(text: str) -> None:
    assert decode_image(RequestImage(text)) == PNG


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://127.0.0.1/x.png", "image URLs are not currently supported"),
        ("HTTPS://example.com/x.png", "image URLs are not currently supported"),
        ("file:///etc/passwd", "not valid base64"),
        ("%%%", "not valid base64"),
        ("", "none of PNG"),
        (base64.b64encode(b"hello").decode(), "none of PNG"),
        ("A" * (IMAGE_BYTES_MAX // 3 * 4 + 8), "more than 10485760 bytes"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        decode_image(RequestImage(text))
    assert caught.value.param == "images"


@pytest.mark.behaviour("B-106")
def test_a_marker_places_its_image_and_the_others_stand_before_the_text() -> None:
    text, placed = place_by_markers("a[img-1]b", [ONE, TWO])
    assert split_at_images(text, placed) == [ONE, "a", TWO, "b"]
    text, placed = place_by_markers("[img-0][img-1]", [ONE, TWO])
    assert split_at_images(text, placed) == [ONE, TWO]


@pytest.mark.behaviour("B-106")
def test_a_marker_without_its_image_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid image index: 1$"):
        place_by_markers("[img-1]", [ONE])


@pytest.mark.behaviour("B-104")
def test_without_images_a_marker_is_text() -> None:
    assert place_by_markers("[img-0] hi", []) == ("[img-0] hi", ())


@pytest.mark.behaviour("B-106")
def test_a_model_that_takes_one_image_refuses_a_second() -> None:
    check_images(1, architecture="mllama")
    text = "^this model only supports one image while more than one image requested$"
    with pytest.raises(InvalidRequest, match=text):
        check_images(2, architecture="mllama")
    check_images(IMAGES_MAX, architecture="llama")
    with pytest.raises(InvalidRequest, match="8 images, this one has 9"):
        check_images(IMAGES_MAX + 1, architecture="llama")


@pytest.mark.behaviour("B-104")
def test_a_model_without_eyes_refuses_images_and_one_that_was_not_inspected_decides_itself() -> None:
    def ask(*capabilities: str, prompt: Chat | RawPrompt) -> None:
        request = AnswerRequest(dialect=Dialect.OLLAMA, model="x", prompt=prompt)
        check_capabilities(request, ModelInfo(name="x:latest", digest="d", capabilities=capabilities))

    chat = Chat(messages=(Message(role="user", content="hi", images=before_text([ONE])),))
    raw = RawPrompt(text="hi", images=before_text([ONE]))
    assert images_of(chat) == images_of(raw) == (PlacedImage(ONE, 0),)
    for prompt in (chat, raw):
        with pytest.raises(UnsupportedCapability, match='"x" does not support vision'):
            ask("completion", prompt=prompt)
        ask("completion", "vision", prompt=prompt)
        ask(prompt=prompt)


def test_images_travel_through_a_template_where_they_stand() -> None:
    guard = LiteralGuard(special=SpecialTexts.of(["<|end|>"]), nonce=2**63 + 5)
    content = guard.hide_with_images("a<|end|>b", (PlacedImage(ONE, 0), PlacedImage(TWO, 8)))
    assert guard.split(f"<user>{content}</user>") == [
        Text("<user>"),
        Picture(FILES[0]),
        Text("a"),
        Literal("<|end|>"),
        Picture(FILES[1]),
        Text("b</user>"),
    ]


def test_what_a_user_writes_never_becomes_an_image() -> None:
    known = LiteralGuard(special=None, nonce=2**63 + 5)
    stand_in = known.hide_with_images("", (PlacedImage(ONE, 0),))
    other = LiteralGuard(special=None, nonce=2**63 + 6)
    other.hide_with_images("", (PlacedImage(ONE, 0),))
    assert re.search("[\ue000\ue001]", stand_in)
    assert other.split(f"{stand_in} [img-0] <image>") == [Text(f"{stand_in} [img-0] <image>")]


def test_a_special_token_across_an_image_is_none() -> None:
    guard = LiteralGuard(special=SpecialTexts.of(["<|end|>"]), nonce=2**63 + 5)
    content = guard.hide_with_images("<|end|>", (PlacedImage(ONE, 3),))
    assert guard.split(content) == [Text("<|e"), Picture(FILES[0]), Text("nd|>")]

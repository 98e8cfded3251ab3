import base64
import json

import pytest

from cli.core.attachments import answer_format, attachment_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


@pytest.mark.parametrize("data", [PNG, b"\xff\xd8\xff\xe0", b"GIF89a..", b"RIFF\0\0\0\0WEBPVP8 ", b"BM\0\0"])
def test_images_are_told_by_what_is_in_them(data: bytes) -> None:
    attachment = attachment_of("looks-like.txt", data)

    assert attachment.text is None
    assert attachment.image is not None
    assert base64.b64decode(attachment.image) == data


def test_text_comes_with_the_name_of_its_file() -> None:
    assert attachment_of("notes.md", b"\xef\xbb\xbfhello\n").text == "notes.md:\n\nhello"


@pytest.mark.parametrize("data", [b"", b" \n", b"\xff\xfe\x00", b"text\0more"])
def test_what_is_neither_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="notes"):
        attachment_of("notes", data)


def test_a_format_is_json_or_a_schema_in_a_file() -> None:
    schema = {"type": "object"}

    assert answer_format("json", lambda _: "never read") == "json"
    assert answer_format("s.json", lambda _: json.dumps(schema)) == schema


@pytest.mark.parametrize("text", ["[]", "nonsense", '"json"'])
def test_a_file_without_a_schema_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"s\.json"):
        answer_format("s.json", lambda _: text)

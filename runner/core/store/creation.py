"""Checks of the options of a new model: all those of a Create that need no file. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TypeVar

import orjson

from common.chat_templates import go_template_fault
from common.errors import InvalidRequest

TEXT_BYTES_MAX = 1024 * 1024  # of any text; a longer one could not be read back
FILES_MAX = 1000
FILE_NAME_CHARACTERS_MAX = 255
PARAMETERS_MAX = 200
MESSAGES_MAX = 1000
FAMILY_CHARACTERS_MAX = 80
Json = TypeVar("Json")


def check_texts(texts: Mapping[str, str]) -> None:
    """Texts by the field that they came in.

    Raises:
        InvalidRequest: one is too long, or actions or blocks of the template do not end.
    """
    for field, text in texts.items():
        if len(text.encode()) > TEXT_BYTES_MAX:
            raise InvalidRequest(f"{field} has more than {TEXT_BYTES_MAX} bytes", param=field)
    if fault := go_template_fault(texts.get("template", "")):
        raise InvalidRequest(f"template error: {fault}", param="template")


def check_word(field: str, text: str) -> None:
    """Check that a renderer or a parser is one word.

    Raises:
        InvalidRequest: it is not.
    """
    if len(text) > FAMILY_CHARACTERS_MAX or not all(letter.isalnum() or letter in "._-" for letter in text):
        raise InvalidRequest(f"{field} is not one word", param=field)


def check_file_names(names: Iterable[str], *, param: str) -> None:
    """Names of files as a client has them; they never become paths here.

    Raises:
        InvalidRequest: one is no relative path, or of a format that cannot be loaded, or there are too many.
    """
    listed = list(names)
    if len(listed) > FILES_MAX:
        raise InvalidRequest(f"more than {FILES_MAX} files", param=param)
    for name in listed:
        path = PurePosixPath(name)
        is_plain = name.isprintable() and "\\" not in name and ":" not in name
        if not 0 < len(name) <= FILE_NAME_CHARACTERS_MAX or not is_plain or path.is_absolute() or ".." in path.parts:
            raise InvalidRequest(f"{name[:80]!r} is no valid relative path", param=param)
        if name.lower().endswith((".safetensors", ".bin", ".pt", ".pth")):
            raise InvalidRequest(f"{name[:80]!r}: only GGUF files can be made into a model", param=param)


def merged_parameters(wanted_json: str, former_json: str) -> bytes:
    """Return the option values as the layer has them, those wanted over the former ones; empty if there are none.

    Names and ranges are the gateway's to check; here it is the shape.

    Raises:
        InvalidRequest: no object of numbers, texts, truths and lists of texts.
    """
    wanted = _parameters(wanted_json)
    if len(wanted) > PARAMETERS_MAX:
        raise InvalidRequest(f"more than {PARAMETERS_MAX} parameters", param="parameters")
    for name, value in wanted.items():
        if not _is_option_value(value):
            raise InvalidRequest(
                f"parameter {name[:80]!r} must be a number, a text, true or false, or a list of texts",
                param="parameters",
            )
    both = {**_parameters(former_json), **wanted}
    return orjson.dumps(both) if both else b""


def checked_messages(messages_json: str) -> bytes:
    """Return the messages as the layer has them; empty if there are none.

    Raises:
        InvalidRequest: no list of {role, content}.
    """
    messages: list[object] = _parsed(messages_json or "[]", list, param="messages", title="list")
    if len(messages) > MESSAGES_MAX:
        raise InvalidRequest(f"more than {MESSAGES_MAX} messages", param="messages")
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise InvalidRequest("a message has a role and a content, both texts", param="messages")
        if message["role"] not in ("system", "user", "assistant"):
            raise InvalidRequest(f"invalid role {message['role'][:40]!r}", param="messages")
    return orjson.dumps(messages) if messages else b""


def config(
    *, architecture: str, parameter_count: int, quantization: str, renderer: str, parser: str, layers: Sequence[str]
) -> bytes:
    """Return the config blob of a manifest, as Ollama writes it."""
    said: dict[str, object] = {
        "model_format": "gguf",
        "model_family": architecture,
        "model_families": [architecture],
        "model_type": parameter_words(parameter_count),
        "file_type": quantization or "unknown",
    }
    if renderer:
        said["renderer"] = renderer
    if parser:
        said["parser"] = parser
    # Other programs read the config as that of a container.
    said |= {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": list(layers)}}
    return orjson.dumps(said)


def parameter_words(count: int) -> str:
    """8030000000 is "8.0B"."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.1f}{letter}"
    return str(count)


def _is_option_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, (str, int, float, bool))


def _parameters(text: str) -> dict[str, object]:
    return _parsed(text or "{}", dict, param="parameters", title="object")


def _parsed(text: str, kind: type[Json], *, param: str, title: str) -> Json:
    try:
        value = orjson.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, kind):
        raise InvalidRequest(f"{param} is no JSON {title}", param=param)
    return value

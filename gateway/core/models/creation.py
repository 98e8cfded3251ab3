"""Checks of what a model is to be made of. Pure."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from common.errors import InvalidRequest, ModelNotFound, NotSupported
from gateway.core.request.model_names import given_model, parse_model_name

_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")
_DRIVE = re.compile(r"[A-Za-z]:")
_PATH_LENGTH_MAX = 512
FILES_MAX = 1000
NOTHING_TEXT = "neither 'from' or 'files' was specified"


def blob_digest(text: str) -> str:
    """Return the 64 hex digits of `sha256:…`.

    Raises:
        InvalidRequest: it is no digest.
    """
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise InvalidRequest("invalid digest format", param="digest")
    return found["hex"]


def new_name(text: str) -> str:
    """Return a name that a model may get.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return parse_model_name(given_model(text)).short
    except ModelNotFound as error:
        raise InvalidRequest("invalid model name", param="model") from error


def checked_files(files: Mapping[str, str], *, param: str) -> dict[str, str]:
    """Return file names and the digests of their blobs, as digits.

    Raises:
        InvalidRequest: a name that leaves its directory, a bad digest, too many, or weights in another format.
    """
    if len(files) > FILES_MAX:
        raise InvalidRequest(f"{param} must be at most {FILES_MAX}", param=param)
    for name in files:
        if name.lower().endswith((".safetensors", ".bin", ".pth", ".pt")):
            raise InvalidRequest(f"{name}: only GGUF files can be used; convert the model first", param=param)
        if not is_relative_path(name):
            raise InvalidRequest("file path must be relative", param=param)
    return {name: blob_digest(digest) for name, digest in files.items()}


def is_relative_path(name: str) -> bool:
    """Return True for a path that stays where it is put, on any system."""
    if not name or len(name) > _PATH_LENGTH_MAX or not name.isprintable() or "\\" in name or _DRIVE.match(name):
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and path.name != ""


def check_origin(base: str, files: Mapping[str, str], quantize: str) -> None:
    """See that it is said what a model is made from, once.

    Raises:
        InvalidRequest, NotSupported: tell the client.
    """
    if quantize:
        raise NotSupported("quantizing is not supported; create from a GGUF that is quantized already")
    if not base and not files:
        raise InvalidRequest(NOTHING_TEXT, param="from")
    if base and files:
        raise InvalidRequest("'from' and 'files' exclude each other", param="files")


def license_texts(value: object) -> list[str]:
    """Return one text or several as a list.

    Raises:
        InvalidRequest: neither.
    """
    match value:
        case None | "":
            return []
        case str():
            return [value]
        case list() if all(isinstance(item, str) for item in value):
            return [item for item in value if item]
        case _:
            raise InvalidRequest("license must be a string or an array of strings", param="license")

"""Names of models from names of files. Pure.

A file system allows nearly any name, a model name is ASCII. A file whose name is a model name keeps it. For any other
one a name is made here: the same on every node, and the same for as long as the file is called so.

| in the file's name | in the model's name |
|---|---|
| accents, full-width forms, ligatures | the plain letter |
| anything else that is no letter, digit, `_`, `.` or `-`, in a row | one `-`; none at the ends |
| a letter of another script, or nothing left | 8 digits of the name's SHA-256 behind what is left, or behind `model` |
| more than 80 characters | cut, with the same digits |
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePath

from common.model_names import DEFAULT_TAG, PART_CHARACTERS_MAX, is_model_name
from common.paths import printable
from runner.core.model.split_files import split_name

SUFFIX = ".gguf"
HASH_DIGITS = 8
UNNAMED = "model"
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+|-{2,}")
_LINE_BREAKS = ("Cc", "Zl", "Zp")  # categories of Unicode


@dataclass(frozen=True, slots=True, kw_only=True)
class NameClaim:
    """A file that wants a name.

    `is_broken`: it cannot be used anyway. `is_own`: the name is the file's own. `path`: below the models.
    """

    name: str
    path: PurePath
    is_own: bool
    is_broken: bool = False

    def rank(self) -> tuple[bool, bool, bool, int, str]:
        """Return what decides between claims to one name: the least has it.

        A file that can be used comes first, then its own name, lower case, fewer folders, and the path.
        """
        has_capitals = self.name != self.name.lower()
        return self.is_broken, not self.is_own, has_capitals, len(self.path.parts), str(self.path)


def has_suffix(name: str) -> bool:
    """Return True for the name of a GGUF file, in capitals too."""
    return name.lower().endswith(SUFFIX)


def file_stem(path: PurePath) -> str:
    """Return the file's name without suffix and without the part that it is of a split model."""
    part = split_name(path)
    if part is not None:
        return part.stem
    return path.name[: -len(SUFFIX)] if has_suffix(path.name) else path.name


def model_name(path: PurePath) -> str:
    """Return the name of a file's model, with the tag ":latest" unless the file's name has one."""
    stem = file_stem(path)
    if is_model_name(stem):
        return stem if ":" in stem else f"{stem}:{DEFAULT_TAG}"
    model, colon, tag = stem.partition(":")
    if not colon or not _plain(tag):
        model, tag = stem, DEFAULT_TAG
    return f"{_part(model, stem)}:{_part(tag, stem)}"


def is_own_name(path: PurePath) -> bool:
    """Return True if the model is called as the file is, suffix included."""
    return is_model_name(file_stem(path)) and path.name.endswith(SUFFIX)


def why_unusable(path: str) -> str:
    """Return why no model can be made of a file with this path, below the models; empty if one can."""
    if any(unicodedata.category(one) == "Cs" for one in path):
        return f"{printable(path)}: the name is not UTF-8; rename it"
    if any(unicodedata.category(one) in _LINE_BREAKS for one in path):
        return f"{printable(path)}: the name has a control character; rename it"
    return ""


def distinct_names(claims: Sequence[NameClaim], taken: Iterable[str]) -> list[str]:
    """Return a name for each claim, in their order; `taken` are the names of stored models.

    Names differ in more than case. What does not get its name has 8 digits of its path's SHA-256 behind it.
    """
    used = {name.lower() for name in taken}
    names = [""] * len(claims)
    for index in sorted(range(len(claims)), key=lambda index: claims[index].rank()):
        claim = claims[index]
        name, digits = claim.name, HASH_DIGITS
        while name.lower() in used:
            model, _, tag = claim.name.partition(":")
            name, digits = f"{_with_hash(model, str(claim.path), digits)}:{tag}", digits + HASH_DIGITS
        used.add(name.lower())
        names[index] = name
    return names


def _part(text: str, whole: str) -> str:
    """Return a text as a model or a tag."""
    folded = _folded(text)
    plain = _plain(text)
    has_lost = any(one.isalnum() and not one.isascii() for one in folded)
    if not plain or has_lost or len(plain) > PART_CHARACTERS_MAX:
        return _with_hash(plain or UNNAMED, whole, HASH_DIGITS)
    return plain


def _plain(text: str) -> str:
    return _OTHERS.sub("-", _OTHERS.sub("-", _folded(text))).strip("-.")


def _folded(text: str) -> str:
    """Return the text without accents; a composed letter and a decomposed one are the same after it."""
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))


def _with_hash(text: str, whole: str, digits: int) -> str:
    digest = sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:digits]
    return f"{text[: PART_CHARACTERS_MAX - digits - 1].rstrip('-.')}-{digest}"

"""Models in several files, as llama.cpp's gguf-split writes them: which belong together, and in which order. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from common.errors import BadModelFile

FILES_MAX = 999
NUMBER_KEY, COUNT_KEY, TENSORS_KEY = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?i:gguf)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SplitName:
    """Parts of a file name of a model in several files. `number` counts from 1."""

    stem: str
    count: int
    number: int


def split_name(path: PurePath) -> SplitName | None:
    """Return the part that a file is by its name; None for a whole model."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    count, number = int(found["count"]), int(found["number"])
    if not 1 <= number <= count or not 1 < count <= FILES_MAX:
        return None
    return SplitName(stem=found["stem"], count=count, number=number)


def check_split(file_name: str, metadata: Mapping[str, object], *, position: int, count: int) -> None:
    """Check that a file is the expected part of its model. `position` counts from 0.

    Raises:
        BadModelFile: it is another one, or others are missing.
    """
    says_number, says_count = split_keys(metadata)
    if says_count != count:
        raise _wrong_count(file_name, says_count, count)
    if says_number != position:
        raise BadModelFile(f"{file_name}: it is file {says_number + 1} of its model, not {position + 1}")


def check_tensor_count(file_name: str, metadata: Mapping[str, object], tensor_count: int) -> None:
    """Check that all parts together have the tensors that the first one announces.

    Raises:
        BadModelFile: they have more, or fewer.
    """
    announced = metadata.get(TENSORS_KEY)
    if isinstance(announced, int) and split_keys(metadata)[1] > 1 and announced != tensor_count:
        raise BadModelFile(f"{file_name}: its files have {tensor_count} tensors together, {announced} are announced")


def split_keys(metadata: Mapping[str, object]) -> tuple[int, int]:
    """Return the number of a part, from 0, and the count of parts; (0, 1) for a whole model."""
    number, count = metadata.get(NUMBER_KEY), metadata.get(COUNT_KEY)
    if not isinstance(count, int) or count <= 1:
        return 0, 1
    return number if isinstance(number, int) else 0, count


def in_order(parts: Sequence[tuple[str, Mapping[str, object]]]) -> list[int]:
    """Indexes of the parts of one model in their order, by their keys. `parts` are names and metadata.

    Raises:
        BadModelFile: one is missing, there twice, or of another model.
    """
    places: dict[int, int] = {}
    for index, (name, metadata) in enumerate(parts):
        number, count = split_keys(metadata)
        if count != len(parts):
            raise _wrong_count(name, count, len(parts))
        if number in places:
            raise BadModelFile(f"{name}: it is file {number + 1} of its model, as {parts[places[number]][0]} is")
        places[number] = index
    return [places[number] for number in sorted(places)]


def _wrong_count(file_name: str, says_count: int, count: int) -> BadModelFile:
    whole = "a whole model" if says_count == 1 else f"one of {says_count} files of its model"
    return BadModelFile(f"{file_name}: it is {whole}; {count} {'file is' if count == 1 else 'files are'} here")

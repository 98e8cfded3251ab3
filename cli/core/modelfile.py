"""Read Modelfiles, and find the files that FROM and ADAPTER name. Pure: the paths that exist are an argument."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath

from cli.core.parameter_values import parameter_values
from common.modelfile import Modelfile, unquoted

SUFFIX = ".gguf"
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_ROLES = frozenset({"system", "user", "assistant"})
_INSTRUCTION = re.compile(r"\s*(?P<name>\S+)[ \t]*(?P<rest>.*)", re.DOTALL)
_WORD = re.compile(r"(?P<word>\S+)[ \t]*(?P<rest>.*)", re.DOTALL)
_LISTS = frozenset({"FROM", "ADAPTER", "LICENSE"})
_TEXTS = frozenset({"TEMPLATE", "SYSTEM", "RENDERER", "PARSER"})
_PAIRS = frozenset({"PARAMETER", "MESSAGE"})
_IGNORED = frozenset({"REQUIRES"})  # the version of another program


class ModelfileInvalid(ValueError):
    """It is no Modelfile; the text names the line and what is wrong with it."""


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile.

    Raises:
        ModelfileInvalid: an unknown instruction, an open quote, a value that is missing, no FROM.
    """
    lists: dict[str, list[str]] = defaultdict(list)
    texts: dict[str, str] = {}
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for number, name, rest in _instructions(text):
        if name in _LISTS:
            lists[name].append(_value(number, name, rest, empty=name == "LICENSE"))
        elif name in _TEXTS:
            texts[name] = _value(number, name, rest, empty=True)
        elif name in _PAIRS:
            pairs[name].append(_pair(number, name, rest))
        elif name not in _IGNORED:
            raise ModelfileInvalid(f"line {number}: there is no instruction {name[:40]}")
    if not lists["FROM"]:
        raise ModelfileInvalid("there is no FROM")
    return Modelfile(
        sources=tuple(lists["FROM"]),
        adapters=tuple(lists["ADAPTER"]),
        template=texts.get("TEMPLATE"),
        system=texts.get("SYSTEM"),
        parameters=tuple(pairs["PARAMETER"]),
        messages=tuple(pairs["MESSAGE"]),
        licenses=tuple(lists["LICENSE"]),
        renderer=texts.get("RENDERER"),
        parser=texts.get("PARSER"),
    )


def create_body(name: str, modelfile: Modelfile) -> Mapping[str, object]:
    """Return the body of POST /api/create, without the source of the model.

    Raises:
        ModelfileInvalid: a parameter that no option has the type of.
    """
    try:
        parameters = parameter_values(modelfile.parameters)
    except ValueError as error:
        raise ModelfileInvalid(str(error)) from error
    body: dict[str, object] = {
        "model": name,
        "template": modelfile.template,
        "system": modelfile.system,
        "parameters": parameters or None,
        "messages": [{"role": role, "content": content} for role, content in modelfile.messages] or None,
        "license": list(modelfile.licenses) or None,
        "renderer": modelfile.renderer,
        "parser": modelfile.parser,
    }
    return {key: value for key, value in body.items() if value is not None}


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, name in capitals and the rest, which may go over several lines where it is quoted."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    index = 0
    while index < len(lines):
        number, line = index + 1, lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while not _is_whole(line):
            if index == len(lines):
                raise ModelfileInvalid(f"line {number}: a quote is not closed")
            line += "\n" + lines[index]
            index += 1
        found = _INSTRUCTION.fullmatch(line)
        assert found is not None  # a line that is not blank begins with a word
        yield number, found["name"].upper(), found["rest"]


def _is_whole(line: str) -> bool:
    found = _INSTRUCTION.fullmatch(line)
    assert found is not None
    rest = found["rest"]
    if found["name"].upper() in _PAIRS and (second := _WORD.fullmatch(rest)) is not None:
        rest = second["rest"]
    return unquoted(rest.strip()) is not None


def _value(number: int, name: str, rest: str, *, empty: bool = False) -> str:
    value = unquoted(rest.strip())
    assert value is not None  # _instructions() gives whole ones only
    if not value and not empty:
        raise ModelfileInvalid(f"line {number}: {name} has no value")
    return value


def _pair(number: int, name: str, rest: str) -> tuple[str, str]:
    found = _WORD.fullmatch(rest.strip())
    if found is None:
        raise ModelfileInvalid(f"line {number}: {name} has no value")
    word, value = found["word"], _value(number, f"{name} {found['word']}", found["rest"], empty=name == "MESSAGE")
    if name == "PARAMETER":
        return word.lower(), value
    if word.lower() not in _ROLES:
        raise ModelfileInvalid(f"line {number}: the role of a message is system, user or assistant, not {word[:40]}")
    return word.lower(), value


def with_other_parts(name: str, there: Collection[str]) -> list[str]:
    """Return a file and, if it is one of several parts, the others in order.

    Raises:
        ValueError: a part is not there.
    """
    found = _SPLIT.fullmatch(name)
    if found is None:
        return [name]
    count = int(found["count"])
    ending = name[len(name) - len(SUFFIX) :]
    parts = [f"{found['stem']}-{number:05d}-of-{found['count']}{ending}" for number in range(1, count + 1)]
    for part in parts:
        if part not in there:
            raise ValueError(f"{part} is missing: {name} is one of {count} parts")
    return parts


def models_in(names: Collection[str]) -> list[str]:
    """List the GGUF files of a directory."""
    return sorted(name for name in names if PurePath(name).suffix.lower() == SUFFIX)


def looks_like_path(source: str) -> bool:
    """Return True for a path or a file name, which is no model name."""
    return source.startswith(("/", "./", "../", "~")) or source.lower().endswith((SUFFIX, ".safetensors", ".bin"))

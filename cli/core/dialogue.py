"""A dialogue: the lines that are typed, the changes that `/set` makes, and its form as a file or as a model. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cli.core.conversation import ChatMessage, Conversation, RunOptions
from cli.core.parameter_values import RULES, parameter_values
from common.nearest import did_you_mean

SUFFIX = ".json"
_ROLES = frozenset({"user", "assistant"})
_ON_OFF = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
_EFFORTS = ("low", "medium", "high", "max")
SET_TEXT = "/set system TEXT, think on|off, format json|FILE|off, keep_alive 10m, verbose on|off, or OPTION VALUE"
QUOTE = '"""'


@dataclass(slots=True)
class Question:
    """Collects lines until they are a whole question: a line, or all that stands between two triple quotes."""

    _lines: list[str] | None = None

    @property
    def is_open(self) -> bool:
        """More lines belong to it."""
        return self._lines is not None

    def add_line(self, line: str) -> str | None:
        """Add a line; the question if that ends it. What stood between quotes keeps its line breaks."""
        if self._lines is None:
            start = line.lstrip()
            if not start.startswith(QUOTE):
                return line.strip()
            self._lines = []
            line = start.removeprefix(QUOTE)
        head, closing, _ = line.partition(QUOTE)
        self._lines.append(head)
        if not closing:
            return None
        return self.drop()

    def drop(self) -> str:
        """End it as it is."""
        lines, self._lines = self._lines or [], None
        return "\n".join(lines).strip("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """`/set temperature 0` has the name "set" and the rest "temperature 0"."""

    name: str
    rest: str = ""


def command_of(line: str) -> Command | None:
    """Parse a line as a command; None: it is a question, as is a path such as `/etc/passwd`."""
    if not line.startswith("/"):
        return None
    name, _, rest = line.removeprefix("/").partition(" ")
    if not (name.isalpha() or name == "?"):
        return None
    return Command(name=name.lower(), rest=rest.strip())


@dataclass(slots=True)
class Interrupts:
    """Counts Ctrl-C: the first stops the answer or empties the line, one more at the prompt ends the dialogue."""

    _count: int = field(default=0)

    def typed(self) -> None:
        """Record that the user wrote a line, and so is present."""
        self._count = 0

    def stopped_answer(self) -> None:
        """Ctrl-C while an answer came."""
        self._count = 1

    def at_prompt(self) -> bool:
        """Ctrl-C while a line was awaited; True: that was the last one."""
        self._count += 1
        return self._count >= 2


def split_setting(rest: str) -> tuple[str, str]:
    """Name and value of `/set NAME VALUE`; Ollama's `/set parameter NAME VALUE` is the same."""
    name, _, value = rest.partition(" ")
    if name == "parameter":
        name, _, value = value.strip().partition(" ")
    return name.lower(), value.strip().removeprefix('"""').removesuffix('"""')


def changed(options: RunOptions, name: str, value: str) -> RunOptions:
    """With one setting changed; an empty value forgets it. `format` is not for here: it reads files.

    Raises:
        ValueError: there is no such setting, or not such a value.
    """
    match name:
        case "system":
            return replace(options, system=value or None)
        case "keep_alive":
            return replace(options, keep_alive=value or None)
        case "think":
            return replace(options, think=_thinking(value))
    if name not in RULES:
        known = {*RULES, "system", "keep_alive", "think", "format", "verbose"}
        raise ValueError(f"there is no setting {name[:40]!r}{did_you_mean(name, known, else_say=SET_TEXT)}")
    others = {key: one for key, one in options.options.items() if key != name}
    return replace(options, options=others | (parameter_values([(name, value)]) if value else {}))


def switch(name: str, value: str) -> bool:
    """Parse "on" and "off" as True and False.

    Raises:
        ValueError: neither.
    """
    if value.lower() not in _ON_OFF:
        raise ValueError(f"{name} is on or off, not {value[:40]!r}")
    return _ON_OFF[value.lower()]


def setting_rows(model: str, options: RunOptions, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield the values in effect that differ from the model's defaults."""
    yield "model", model
    rows: dict[str, Any] = {
        "system": options.system,
        "think": options.think,
        "format": "schema" if isinstance(options.answer_format, dict) else options.answer_format,
        "keep_alive": options.keep_alive,
        **options.options,
        "verbose": verbose or None,
    }
    for name, value in rows.items():
        if value is not None:
            yield name, " ".join(str(value).split())


def _thinking(value: str) -> bool | str | None:
    if not value:
        return None
    return value.lower() if value.lower() in _EFFORTS else switch("think", value)


def is_file_name(name: str) -> bool:
    """`/save talk.json` writes a file, `/save talk` makes a model."""
    return name.endswith(SUFFIX)


def to_text(model: str, conversation: Conversation, options: RunOptions) -> str:
    """Return the text of the file."""
    fields = {
        "model": model,
        "system": options.system,
        "think": options.think,
        "format": options.answer_format,
        "keep_alive": options.keep_alive,
        "options": dict(options.options),
        "messages": [message.as_json() for message in conversation.messages],
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}, indent=2) + "\n"


def from_text(text: str) -> tuple[str, Conversation, RunOptions]:
    """Model, turns and settings of a file.

    Raises:
        ValueError: it is no such file.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), str):
        raise ValueError("it is no saved dialogue")
    options = fields.get("options", {})
    if not isinstance(options, dict):
        raise ValueError("its options are none")
    return (
        fields["model"],
        Conversation(messages=tuple(_message(one) for one in fields.get("messages") or [])),
        RunOptions(
            system=fields.get("system"),
            keep_alive=fields.get("keep_alive"),
            think=fields.get("think"),
            answer_format=fields.get("format"),
            options=options,
        ),
    )


def model_body(name: str, model: str, conversation: Conversation, options: RunOptions) -> dict[str, Any]:
    """Return the body of POST /api/create for a model that continues this dialogue."""
    body = {
        "model": name,
        "from": model,
        "system": options.system,
        "parameters": dict(options.options) or None,
        "messages": [message.as_json() for message in conversation.messages] or None,
    }
    return {key: value for key, value in body.items() if value is not None}


def _message(fields: Mapping[str, Any]) -> ChatMessage:
    if not isinstance(fields, dict) or fields.get("role") not in _ROLES or not isinstance(fields.get("content"), str):
        raise ValueError("one of its messages is none")
    images = fields.get("images") or []
    return ChatMessage(role=fields["role"], content=fields["content"], images=tuple(str(image) for image in images))

"""The shape of a row in the table of clients, and how its texts are filled in. Pure."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

NO_KEY = "unused"  # most clients refuse an empty key, and a gateway without keys ignores this one
KEY_VARIABLE = "PUNA_API_KEY"
_CONDITION = re.compile(r"^\{\{(?P<sign>[?!])(?P<name>\w+)\}\}")
_PLACEHOLDER = re.compile(r"\{\{(?P<name>\w+)\}\}")


class ClientApi(StrEnum):
    """The API that a client speaks."""

    ANTHROPIC = "Anthropic Messages"
    RESPONSES = "OpenAI Responses"
    CHAT = "OpenAI Chat Completions"


class Format(StrEnum):
    """The language of a text. Its value names the fence in Markdown."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"
    SHELL = "sh"
    PYTHON = "python"
    TYPESCRIPT = "ts"
    STEPS = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One text that a user puts somewhere.

    `text` has placeholders `{{url}}` (without /v1), `{{model}}`, `{{context}}`, `{{output}}`, `{{key}}`, `{{tools}}`,
    `{{images}}`. A line that begins with `{{?name}}` is there only if that value is true or not empty, one with
    `{{!name}}` only if it is not; the condition `key` means that the gateway asks for keys.
    """

    format: Format
    text: str
    label: str = ""  # of a text that belongs in no file
    folder: str = ""  # `~` is the home directory; empty: not a file that `--write` writes
    file: str = ""
    # Variables of the environment that move the folder, and the folder below each; the first that is set counts.
    moved_by: tuple[tuple[str, str], ...] = ()
    head: str = ""  # what a new file begins with

    @property
    def path(self) -> str:
        """The usual path, or empty."""
        if not self.file:
            return ""
        return f"{self.folder}/{self.file}" if self.folder else self.file

    @property
    def title(self) -> str:
        """The path, or the label of a text without a file."""
        return self.path or self.label


# For clients that read the key of a file's text from the environment.
EXPORTED_KEY = Setting(label="environment", format=Format.SHELL, text="{{?key}}export " + KEY_VARIABLE + "={{key}}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectClient:
    """One program. Contexts are in tokens; 0: as its user's own prompts need."""

    key: str
    name: str
    dialect: ClientApi = ClientApi.CHAT
    settings: tuple[Setting, ...]
    context_min: int = 0  # below this its first question or the second one fails
    context: int = 0  # for work without constant summaries
    output: int = 4096  # longest answer that is worth allowing
    needs_tools: bool = False
    start: str = ""  # the command that starts it afterwards
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values that fill a row's texts."""

    url: str
    model: str
    context: int
    output: int
    key: str = ""  # empty: the gateway asks for none
    tools: bool = True
    images: bool = False


def output_tokens(client: ConnectClient, context: int) -> int:
    """Return the longest answer to allow: at most a quarter of the context, so that a conversation fits beside it."""
    return max(min(client.output, context // 4), 1)


def filled(text: str, values: Values) -> str:
    """Return a text with its conditions decided and its placeholders replaced."""
    words = _words(values)
    kept = []
    for line in text.splitlines(keepends=True):
        found = _CONDITION.match(line)
        if found is None:
            kept.append(line)
        elif bool(words[found["name"]] not in ("", "false")) is (found["sign"] == "?"):
            kept.append(line[found.end() :])
    whole = "".join(kept)
    replaced = {**words, "key": words["key"] or NO_KEY}
    return _PLACEHOLDER.sub(lambda found: replaced[found["name"]], whole)


def _words(values: Values) -> Mapping[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in asdict(values).items()
    }

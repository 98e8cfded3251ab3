"""Files that a question or its answer's format is read from."""

import json
from pathlib import Path
from typing import Any

from cli.core.attachments import Attachment, answer_format, attachment_of
from cli.errors import CommandFailed

# What a gateway takes as one body is more; but no question is longer.
FILE_BYTES_MAX = 32 * 1024 * 1024
_PATH_LENGTH_MAX = 255  # a longer word is no name of a file


def read_attachment(path: Path) -> Attachment:
    """Read a file that is attached to a question.

    Raises:
        CommandFailed: it cannot be read, or models cannot be shown it.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise CommandFailed(f"{path} has more than {FILE_BYTES_MAX} bytes")
        return attachment_of(path.name, path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def read_prompt(word: str) -> dict[str, Any]:
    """Read the value of `--prompt`: a text, a file with one, or a file with a JSON object of messages (and tools).

    Raises:
        CommandFailed: the file cannot be read.
    """
    text = word
    try:
        if len(word) <= _PATH_LENGTH_MAX and Path(word).is_file():
            if Path(word).stat().st_size > FILE_BYTES_MAX:
                raise CommandFailed(f"{word} has more than {FILE_BYTES_MAX} bytes")
            text = Path(word).read_text(encoding="utf-8")
            body = json.loads(text)
            if isinstance(body, dict) and "messages" in body:
                return {name: body[name] for name in ("messages", "tools", "think") if name in body}
    except OSError as error:
        raise CommandFailed(f"{word}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{word} is no UTF-8 text") from error
    except ValueError:
        pass  # no JSON: a text
    return {"messages": [{"role": "user", "content": text}]}


def read_format(word: str) -> Any:
    """Read the value of `--format`.

    Raises:
        CommandFailed: a file that cannot be read, or holds no schema.
    """
    try:
        return answer_format(word, lambda name: Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{word}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(str(error)) from error

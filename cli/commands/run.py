"""`puna run` and `puna chat`."""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.commands.dialogue import Dialogue
from cli.commands.talk import Talk
from cli.core.answer_format import answer_format
from cli.core.attachments import Attachment, attachment_of
from cli.core.conversation import RunOptions, join_question
from cli.core.exit_codes import ExitCode
from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings

# What a gateway takes as one body is more; but no question is longer.
FILE_BYTES_MAX = 32 * 1024 * 1024


def run(
    model: str, words: list[str], files: Sequence[Path], options: RunOptions, *, verbose: bool, as_json: bool
) -> None:
    """Answer a question from the command line, files or standard input, or talk until the user leaves.

    Raises:
        CommandFailed: no answer, or it was stopped.
    """
    attached = [read_attachment(path) for path in files]
    images = [one.image for one in attached if one.image is not None]
    texts = [one.text for one in attached if one.text is not None]
    settings = CliSettings.load()
    talk = Talk(Server.of(settings), model, options, verbose=verbose, as_json=as_json)
    try:
        question = join_question(words, [*texts, *(() if (piped := _piped()) is None else (piped,))])
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if question is None:
        if as_json:
            raise CommandFailed("--json needs a question", ExitCode.USAGE)
        Dialogue(talk, settings, images).run()
    elif not talk.ask(question, images):
        raise CommandFailed("the answer was stopped", ExitCode.INTERRUPTED)


def chat(model: str, options: RunOptions, *, verbose: bool) -> None:
    """Talk until the user leaves; the lines of a pipe are questions and commands, too."""
    settings = CliSettings.load()
    Dialogue(Talk(Server.of(settings), model, options, verbose=verbose), settings).run()


def read_attachment(path: Path) -> Attachment:
    """A file for a question.

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


def read_format(word: str) -> Any:
    """What `--format` names.

    Raises:
        CommandFailed: a file that cannot be read, or holds no schema.
    """
    try:
        return answer_format(word, lambda name: Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandFailed(f"{word}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(str(error)) from error


def _piped() -> str | None:
    """What was piped or redirected in; None for a terminal, a closed input and /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return sys.stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None

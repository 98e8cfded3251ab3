"""`puna run` and `puna chat`."""

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from cli.commands.dialogue import Dialogue
from cli.commands.question_files import read_attachment
from cli.commands.talk import Talk
from cli.core.conversation import RunOptions, join_question
from cli.core.exit_codes import ExitCode
from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings


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


def _piped() -> str | None:
    """Read the standard input if it is a pipe or a file; None for a terminal, a closed input and /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return sys.stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None

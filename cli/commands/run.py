"""`puna run`: one answer, or a dialogue."""

import os
import stat
import sys
from contextlib import closing, nullcontext, suppress

from rich.console import Console

from cli.core.conversation import Conversation, RunOptions, chat_body, join_question, timing_line
from cli.errors import CommandFailed
from cli.server import Server
from cli.settings import CliSettings

INTERRUPTED = 130
_PROMPT = ">>> "


def run(model: str, words: list[str], options: RunOptions, *, verbose: bool) -> int:
    """Answer a question from the command line or standard input, or talk until the user leaves."""
    server = Server.of(CliSettings.load())
    talk = _Talk(server, model, options, verbose=verbose)
    try:
        question = join_question(words, _piped())
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if question is not None:
        return 0 if talk.ask(question) else INTERRUPTED
    return talk.dialogue()


def _piped() -> str | None:
    """What was piped or redirected in; None for a terminal, a closed input and /dev/null."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return None
    return sys.stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else None


class _Talk:
    """A conversation with one model and where its answers go."""

    def __init__(self, server: Server, model: str, options: RunOptions, *, verbose: bool) -> None:
        self._server = server
        self._model = model
        self._options = options
        self._verbose = verbose
        self._conversation = Conversation()
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False)

    def ask(self, question: str) -> bool:
        """Stream one answer. False if the user stopped it; it is not remembered then."""
        conversation = self._conversation.asked(question)
        objects = self._server.stream("/api/chat", chat_body(self._model, conversation, self._options))
        answer: list[str] = []
        last = None
        # A first answer may wait for the model to load; nothing of the stream says how far that is.
        waiting = self._err.status(f"waiting for {self._model}") if self._err.is_terminal else nullcontext()
        try:
            with closing(objects):
                with waiting:
                    chunk = next(objects, None)
                while chunk is not None:
                    answer.append(self._show(chunk.get("message") or {}))
                    last = chunk if chunk.get("done") else None
                    chunk = next(objects, None)
        except KeyboardInterrupt:
            self._end_line()
            return False
        self._end_line()
        if last is None:
            raise CommandFailed("the answer broke off")
        if self._verbose:
            self._err.print(timing_line(last), style="dim")
        self._conversation = conversation.answered("".join(answer))
        return True

    def dialogue(self) -> int:
        """Ask what the user types. Ctrl-C stops an answer, Ctrl-D or /bye ends the dialogue."""
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415  # gives input() editing and history; some builds lack it
        self._server.get("/api/version")
        self._err.print("Ctrl-C stops an answer, /bye or Ctrl-D leaves.", style="dim")
        while True:
            try:
                question = input(_PROMPT).strip()
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                print()
                continue
            if question == "/bye":
                return 0
            if question:
                try:
                    self.ask(question)
                except CommandFailed as error:
                    print(f"puna: {error}", file=sys.stderr)

    def _show(self, message: dict[str, object]) -> str:
        """Print a piece of the answer and return what of it counts as content. Thinking is shown on a terminal only."""
        thinking, content = str(message.get("thinking") or ""), str(message.get("content") or "")
        if thinking and self._out.is_terminal:
            self._out.print(thinking, style="dim", end="", markup=False)
        if content:
            sys.stdout.write(content)
            sys.stdout.flush()
        return content

    @staticmethod
    def _end_line() -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()

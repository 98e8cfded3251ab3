"""A conversation with one model, and where its answers go: the terminal, a pipe, or one JSON document."""

import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext

from rich.console import Console

from cli.core.conversation import ChatAnswer, Conversation, RunOptions, chat_body, timing_line
from cli.errors import CommandFailed
from cli.output import print_json
from cli.server import Server


class Talk:
    """A conversation, and the options of its next answer."""

    def __init__(
        self, server: Server, model: str, options: RunOptions, *, verbose: bool, as_json: bool = False
    ) -> None:
        """Nothing is asked yet."""
        self.server = server
        self.model = model
        self.options = options
        self.verbose = verbose
        self.conversation = Conversation()
        self.err = Console(stderr=True, highlight=False)
        self._out = Console(highlight=False, soft_wrap=True)
        self._as_json = as_json

    def ask(self, question: str, images: Sequence[str] = ()) -> bool:
        """Stream one answer. False if the user stopped it; it is not remembered then.

        Raises:
            CommandFailed: the server refuses, or breaks off.
        """
        conversation = self.conversation.asked(question, images)
        objects = self.server.stream("/api/chat", chat_body(self.model, conversation, self.options))
        answer = ChatAnswer()
        # A first answer may wait for the model to load; nothing of the stream says how far that is.
        waiting = self.err.status(f"waiting for {self.model}") if self.err.is_terminal else nullcontext()
        try:
            with closing(objects):
                with waiting:
                    chunk = next(objects, None)
                thinks = False
                while chunk is not None:
                    thinks = self._show(*answer.add_chunk(chunk), thinks=thinks)
                    chunk = next(objects, None)
        except KeyboardInterrupt:
            self._end_line()
            return False
        except CommandFailed:
            if answer.text:
                self._end_line()
            raise
        if answer.last is None:
            self._end_line()
            raise CommandFailed("the answer broke off")
        if self._as_json:
            print_json(answer.whole())
        self._end_line()
        if self.verbose:
            self.err.print(timing_line(answer.last), style="dim")
        self.conversation = conversation.answered(answer.text)
        return True

    def _show(self, thinking: str, content: str, *, thinks: bool) -> bool:
        """Print a piece of the answer; True while the model thinks, which is shown on a terminal only, and dimmed."""
        if self._as_json:
            return False
        if thinking and self._out.is_terminal:
            self._out.print(thinking, style="dim", end="", markup=False)
            thinks = True
        if content:
            sys.stdout.write(f"\n\n{content.lstrip()}" if thinks else content)
            sys.stdout.flush()
            thinks = False
        return thinks

    def _end_line(self) -> None:
        if not self._as_json:
            sys.stdout.write("\n")
            sys.stdout.flush()

"""A conversation with one model, as `puna run` has it for one question, and the dialogue of `puna chat`."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from cli.cluster.home import real_home
from cli.commands.question_files import read_attachment, read_format
from cli.core.conversation import ChatAnswer, Conversation, RunOptions, chat_body, timing_line
from cli.core.dialogue import (
    SET_TEXT,
    Command,
    Interrupts,
    Question,
    changed,
    command_of,
    from_text,
    is_file_name,
    model_body,
    setting_rows,
    split_setting,
    switch,
    to_text,
)
from cli.core.shown_model import TEXTS, sections
from cli.errors import CommandFailed, ExitCode
from cli.output import print_json, print_sections
from cli.server import Server
from cli.settings import CliSettings

_PROMPT, _MORE = ">>> ", "... "
_HISTORY_LINES = 1000
_SAVED_WITHIN_S = 120.0
HELP = (
    ("/set", "what is in effect; /set NAME VALUE changes it, /set NAME forgets it"),
    ("", SET_TEXT.removeprefix("/set ")),
    ("/show", "the model; /show modelfile, parameters, template, system, license, messages"),
    ("/file PATH", "text or an image for the next question"),
    ("/clear", "forget what was said"),
    ("/save NAME", "make a model that goes on from here; /save NAME.json writes a file"),
    ("/load NAME", "talk to another model; /load NAME.json goes on with a file"),
    ("/bye", "leave; Ctrl-D does, too, and Ctrl-C twice"),
    ('"""', "begins and ends a question of several lines"),
)


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


class Dialogue:
    """Reads lines until the user leaves."""

    def __init__(self, talk: Talk, images: Sequence[str] = ()) -> None:
        """`images` belong to the first question."""
        self._talk = talk
        self._images = list(images)
        self._texts: list[str] = []
        self._interrupts = Interrupts()
        self._on_terminal = sys.stdin.isatty()
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "?": self._help,
            "set": self._set,
            "show": self._show,
            "clear": self._clear,
            "save": self._save,
            "load": self._load,
            "file": self._attach,
        }

    def run(self) -> None:
        """Talk.

        Raises:
            CommandFailed: no server, or the user left by Ctrl-C.
        """
        self._talk.server.get("/api/version")
        history = self._history() if self._on_terminal else None
        if self._on_terminal:
            self._talk.err.print("/help lists commands. Ctrl-C stops an answer, /bye or Ctrl-D leaves.", style="dim")
        try:
            self._read_lines()
        finally:
            if history is not None:
                _write_history(history)

    def _read_lines(self) -> None:
        question = Question()
        while True:
            try:
                line = self._line(_MORE if question.is_open else _PROMPT)
            except EOFError:
                if self._on_terminal:
                    print()
                if question.is_open and (unfinished := question.drop()):
                    self._ask(unfinished)
                return
            except KeyboardInterrupt:
                print()
                question = Question()
                if self._interrupts.at_prompt():
                    raise CommandFailed("left by Ctrl-C", ExitCode.INTERRUPTED) from None
                self._talk.err.print("Ctrl-C once more, /bye or Ctrl-D leaves.", style="dim")
                continue
            self._interrupts.typed()
            command = None if question.is_open else command_of(line)
            if command is None:
                if text := question.add_line(line):
                    self._ask(text)
            elif command.name in ("bye", "exit", "quit"):
                return
            else:
                self._obey(command)

    def _line(self, prompt: str) -> str:
        if self._on_terminal:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def _ask(self, question: str) -> None:
        texts, images = [*self._texts, question], list(self._images)
        try:
            if not self._talk.ask("\n\n".join(texts), images):
                self._interrupts.stopped_answer()
                return
        except CommandFailed as error:
            _complain(error)
            return
        except KeyboardInterrupt:  # a second one, while the first still stopped the answer
            self._interrupts.stopped_answer()
            return
        self._texts, self._images = [], []

    def _obey(self, command: Command) -> None:
        act = self._commands.get(command.name)
        try:
            if act is None:
                raise CommandFailed(f"there is no command /{command.name[:40]}; /help lists them")
            act(command.rest)
        except (ValueError, CommandFailed) as error:
            _complain(error)
        except OSError as error:
            _complain(CommandFailed(f"{error.filename}: {error.strerror}"))
        except KeyboardInterrupt:
            self._interrupts.stopped_answer()

    def _help(self, _: str) -> None:
        print_sections([("", list(HELP))])

    def _set(self, rest: str) -> None:
        talk, (name, value) = self._talk, split_setting(rest)
        if name == "format":
            wanted = None if value in ("", "off") else read_format(value)
            talk.options = replace(talk.options, answer_format=wanted)
        elif name == "verbose":
            talk.verbose = switch(name, value) if value else False
        elif name:
            talk.options = changed(talk.options, name, value)
        print_sections([("", list(setting_rows(talk.model, talk.options, verbose=talk.verbose)))])

    def _show(self, what: str) -> None:
        if what == "messages":
            print_sections([("", [(one.role, one.content) for one in self._talk.conversation.messages])])
            return
        if what not in ("", "info", *TEXTS):
            raise CommandFailed(f"/show knows {', '.join(TEXTS)} and messages")
        shown = self._talk.server.send("POST", "/api/show", {"model": self._talk.model})
        if what in TEXTS:
            print(str(shown.get(what) or "").rstrip("\n"))
        else:
            print_sections(sections(self._talk.model, shown))

    def _clear(self, _: str) -> None:
        self._talk.conversation = Conversation()
        self._texts, self._images = [], []
        print("forgotten")

    def _save(self, name: str) -> None:
        talk = self._talk
        if not name:
            raise CommandFailed("/save needs a name: of a model, or of a file that ends with .json")
        if is_file_name(name):
            Path(name).expanduser().write_text(to_text(talk.model, talk.conversation, talk.options), encoding="utf-8")
        else:
            body = {**model_body(name, talk.model, talk.conversation, talk.options), "stream": False}
            talk.server.send("POST", "/api/create", body, answer_within_s=_SAVED_WITHIN_S)
        print(f"saved as {name}")

    def _load(self, name: str) -> None:
        talk = self._talk
        if not name:
            raise CommandFailed("/load needs a name: of a model, or of a file that ends with .json")
        if is_file_name(name):
            try:
                saved = from_text(Path(name).expanduser().read_text(encoding="utf-8"))
            except ValueError as error:
                raise CommandFailed(f"{name}: {error}") from error
            talk.model, talk.conversation, talk.options = saved
        else:
            talk.server.send("POST", "/api/show", {"model": name})  # reports an unknown name now
            talk.model, talk.conversation = name, Conversation()
        count = len(talk.conversation.messages)
        print(f"talking to {talk.model}" + (f", {count} messages so far" if count else ""))

    def _attach(self, name: str) -> None:
        if not name:
            raise CommandFailed("/file needs a path")
        path = Path(name).expanduser()
        attachment = read_attachment(path)
        if attachment.image is not None:
            self._images.append(attachment.image)
        if attachment.text is not None:
            self._texts.append(attachment.text)
        print(f"{path.name} belongs to the next question")

    def _history(self) -> Path | None:
        """Editing and the history of earlier dialogues; None where this Python has no such thing."""
        try:
            import readline  # noqa: PLC0415  # some builds lack it
        except ImportError:
            return None
        path = real_home(Path(CliSettings.load().home)) / "history"
        with suppress(OSError):
            readline.read_history_file(path)
        readline.set_history_length(_HISTORY_LINES)
        return path


def _write_history(path: Path) -> None:
    import readline  # noqa: PLC0415  # is there: the history was read

    with suppress(OSError):  # a home that cannot be written has no history
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Private before anything is in it: no other user reads the prompts.
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        readline.write_history_file(path)
        path.chmod(0o600)


def _complain(error: Exception) -> None:
    print(f"puna: {error}", file=sys.stderr, flush=True)

"""Lines that are typed in a dialogue: questions over several lines, commands, and what Ctrl-C means. Pure."""

from dataclasses import dataclass, field

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
        """Note a line of the user, who is still here."""
        self._count = 0

    def stopped_answer(self) -> None:
        """Ctrl-C while an answer came."""
        self._count = 1

    def at_prompt(self) -> bool:
        """Ctrl-C while a line was awaited; True: that was the last one."""
        self._count += 1
        return self._count >= 2

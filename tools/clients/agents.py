"""Coding agents: each writes a program and runs it, on three turns of one conversation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.clients.packages import Packages
from tools.clients.recorder import Exchange
from tools.clients.stage import ClientFailed, Place, Task
from tools.clients.usage import check_prefix_kept

FILE = "hello.py"
OUTPUT = "{word}-42"
CODE = 'print("{word}", 6 * 7, sep="-")\n'
# The scripted model says the result of the last tool in the place of {result}.
TURNS = (
    f"Write {FILE} and run it. ⟪call {{write}}⟫ ⟪call {{run}}⟫ ⟪say It prints {{result}}⟫",
    "Run it once more. ⟪call {run}⟫ ⟪say Again it prints {result}⟫",
    "Thank you. ⟪say You are welcome, {word}.⟫",
)
REQUESTS = 6  # two calls and an answer, one call and an answer, an answer
ANSWERS = ("It prints {output}", "Again it prints {output}", "You are welcome, {word}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A program that gets a task, and tools of its own. Names in braces are filled in (`Place.fill`).

    Attributes:
        first, again: the commands of the first turn and of later ones; {prompt} is read from standard input where they
            do not have it.
        write, run: the tools, and their arguments.
    """

    name: str
    packages: Packages
    dialect: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    write: tuple[str, Mapping[str, object]]
    run: tuple[str, Mapping[str, object]]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    is_quick: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the one task of all agents."""
        return (Task(name="write a file, run it, three turns", dialect=self.dialect, streams=(True,)),)

    def do(self, task: Task, *, stream: bool, place: Place) -> str:
        """Do the task and return a remark.

        Raises:
            ClientFailed: something else was seen than the task asks for.
            PrefixLost: a turn evaluated tokens again.
        """
        assert stream in task.streams
        for name, text in self.files.items():
            path = place.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(place.fill(text))
        output = place.fill(OUTPUT)
        for turn, prompt in enumerate(TURNS):
            said = self._turn(prompt, place, self.again if turn else self.first)
            if turn == 0:
                self._check_file(place)
            expected = place.fill(ANSWERS[turn]).replace("{output}", "")
            if expected not in said or (turn < 2 and output not in said):
                raise ClientFailed(f"turn {turn + 1}: the answer is {said[-300:]!r}: {_last_words(place)}")
        return f"{check_prefix_kept(place.recorder.exchanges, turns_min=REQUESTS):.1%} of each prompt cached"

    def _check_file(self, place: Place) -> None:
        path = place.work / FILE
        if not path.exists() or path.read_text().strip() != place.fill(CODE).strip():
            raise ClientFailed(f"{FILE} was not written: {_last_words(place)}")

    def _turn(self, prompt: str, place: Place, command: tuple[str, ...]) -> str:
        text = place.fill(prompt.replace("{write}", _call(self.write)).replace("{run}", _call(self.run)))
        program, *arguments = [text if word == "{prompt}" else place.fill(word) for word in command]
        environment = {name: place.fill(value) for name, value in self.environment.items()}
        stdin = "" if "{prompt}" in command else text
        return place.call([str(self.packages.commands / program), *arguments], environment, stdin=stdin)


def _call(tool: tuple[str, Mapping[str, object]]) -> str:
    """Return a step of the script as text; a file's content is filled in before it is written as JSON."""
    name, arguments = tool
    return f"{name} {json.dumps(arguments)}"


def _last_words(place: Place) -> str:
    answers: list[Exchange] = [one for one in place.recorder.exchanges if one.method == "POST"]
    if not answers:
        return "the client sent no request"
    last = answers[-1]
    return f"{last.path} {last.status} …{last.answered[-300:].decode(errors='replace')}"

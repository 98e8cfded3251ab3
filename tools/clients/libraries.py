"""Libraries and servers: each task is a function of a script that runs with the installed packages."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.clients.packages import Npm, Packages
from tools.clients.stage import EMBEDDING_MODEL, MODEL, ClientFailed, Place, Task

SCRIPTS = Path(__file__).resolve().parents[2] / "tests" / "clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A client that a program of ours calls. Its script checks what it got and fails where that is wrong."""

    name: str
    packages: Packages
    script: str
    tasks: tuple[Task, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_quick: bool = False

    def do(self, task: Task, *, stream: bool, place: Place) -> str:
        """Do the task and return a remark.

        Raises:
            ClientFailed: the script saw something else than the task asks for.
        """
        facts = {
            "url": place.recorder.url,
            "model": MODEL,
            "embedding_model": EMBEDDING_MODEL,
            "word": place.word,
            "stream": stream,
            "task": f"{task.dialect}: {task.name}",
        }
        environment = {name: place.fill(value) for name, value in self.environment.items()}
        if isinstance(self.packages, Npm):
            # Node looks for packages beside the script.
            for path in (SCRIPTS / "js").iterdir():
                shutil.copy(path, self.packages.folder)
            command = ["node", str(self.packages.folder / self.script)]
        else:
            command = [str(self.packages.commands / "python"), str(SCRIPTS / "python" / self.script)]
        place.call([*command, json.dumps(facts)], environment)
        asked = [one for one in place.recorder.exchanges if one.method == "POST"]
        if not asked:
            raise ClientFailed("the client sent no request")
        if stream and not any(one.is_stream for one in asked):
            raise ClientFailed(f"no answer was a stream: {[one.path for one in asked]}")
        return ""

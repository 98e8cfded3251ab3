"""The cluster that clients meet, and one client's place on it."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import start_cluster
from tools.clients import scripted_model
from tools.clients.recorder import Recorder, recording
from tools.model_zoo import build

MODEL = scripted_model.NAME
EMBEDDING_MODEL = "embed_mean"
# What coding agents send fits twice; the cache of the scripted model takes half a kilobyte per token.
CONTEXT_TOKENS = 65_536
CLIENT_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task of a client, over one of our APIs. `streams`: without and with one, as far as the client has both."""

    name: str
    dialect: str
    streams: tuple[bool, ...] = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder of its own for one run of a client, and the proxy that records it."""

    recorder: Recorder
    home: Path
    work: Path
    word: str  # another for each run, so that nothing can be right by chance

    def fill(self, text: str) -> str:
        """Put addresses and folders in the place of their names in braces."""
        values = {"url": self.recorder.url, "home": self.home, "work": self.work, "word": self.word, "model": MODEL}
        for name, value in values.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def call(self, command: Sequence[str], environment: Mapping[str, str], *, stdin: str = "") -> str:
        """Run a program of the client and return what it wrote to its standard output.

        Raises:
            ClientFailed: it ended with an error, or not in time.
        """
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TERM": "dumb", "NO_COLOR": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.work,
                env=variables | dict(environment),
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=CLIENT_DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientFailed(f"no end within {CLIENT_DEADLINE_S:.0f} s") from error
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise ClientFailed(f"exit status {done.returncode}: {said[-1] if said else ''}")
        return done.stdout


class ClientFailed(AssertionError):
    """A client did not do its task."""


@contextmanager
def open_stage() -> Iterator[Recorder]:
    """Run a cluster with the scripted model, and a recording proxy before it."""
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        home = Path(folder) / "home"
        scripted_model.write(home / "models" / f"{MODEL}.gguf")
        build(EMBEDDING_MODEL, home / "models")
        cluster = start_cluster(home, PUNA_CONTEXT_LENGTH=str(CONTEXT_TOKENS), PUNA_NUM_PARALLEL="2")
        try:
            with recording(cluster.url) as recorder:
                yield recorder
        finally:
            cluster.stop()


@contextmanager
def open_place(recorder: Recorder) -> Iterator[Place]:
    """Make the folders of one run and forget what was recorded before."""
    recorder.drain()
    # Not in the folder for temporary files: Codex refuses to put its programs there.
    above = Path(tempfile.mkdtemp(prefix=".puna-client-", dir=Path.home()))
    try:
        place = Place(recorder=recorder, home=above / "home", work=above / "work", word=secrets.token_hex(4))
        place.home.mkdir()
        place.work.mkdir()
        yield place
    finally:
        shutil.rmtree(above, ignore_errors=True)

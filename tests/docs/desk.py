"""The environment that runs the blocks of one page: a directory, a cluster, and real addresses for the page's."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.cluster import Cluster
from tests.ports import free_port
from tests.waiting import wait_until
from tools.docs_markdown import ROOT, Block

BLOCK_S_MAX = 480.0  # of a busy machine
STOP_S_MAX = 60.0
BIN = Path(sys.executable).parent
# What an output that a page shows may leave open.
ANYTHING = "…"


@dataclass(slots=True, kw_only=True)
class Desk:
    """Blocks of a page run here, in the page's order. `keys` are what its placeholders of keys stand for."""

    folder: Path
    cluster: Cluster
    environment: dict[str, str] = field(default_factory=dict)
    output: str = ""  # of the last block

    def prepare(self) -> None:
        """The files that blocks name, and the commands that they find first."""
        commands = self.folder / "bin"
        commands.mkdir(parents=True, exist_ok=True)
        for name, target in (("puna", BIN / "puna"), ("make", Path("/usr/bin/make"))):
            stand_in = commands / name
            run = f'exec "{sys.executable}" "{ROOT}/tests/docs/started.py" "{target}"'
            options = f' -C "{ROOT}" --old-file=.venv/.ready' if name == "make" else ""
            words = f'"$@"{options}'
            stand_in.write_text(f"#!/bin/sh\n{run} {words}\n")
            stand_in.chmod(0o755)
        for name in (".venv", "deploy", "docs", "models"):
            if not (self.folder / name).exists():
                (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "notes.txt").write_text(
            "Puna serves GGUF models. It measures memory before it places a model.\n"
        )
        (self.folder / "question.txt").write_text("What is Puna?\n")

    def run(self, block: Block) -> None:
        """Run a block as its page's reader would; its output is kept for the block that shows it."""
        text = self.addresses(block.text)
        command = (
            [str(BIN / "python"), "-c", text]
            if block.language == "python"
            else ["bash", "-euo", "pipefail", "-c", text]
        )
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=BLOCK_S_MAX,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        self.output = done.stdout
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"{block.name} ended with {done.returncode}:\n{said}"
        refused = re.search(r'^\{"error":.*|"status": ?"failed".*', said, re.MULTILINE)  # curl does not mind
        assert refused is None, f"{block.name}: {refused and refused[0]}"

    def run_dialogue(self, block: Block) -> None:
        """Run a block that shows commands behind "$" with what they print; lines behind ">>>" are typed."""
        for part in re.split(r"(?m)^\$ ", self.addresses(block.text))[1:]:
            command, _, shown = part.partition("\n")
            typed = "".join(f"{line[4:]}\n" for line in shown.splitlines() if line.startswith((">>> ", "... ")))
            done = subprocess.run(
                ["bash", "-uc", command],
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                text=True,
                timeout=BLOCK_S_MAX,
                check=False,
                input=typed,
            )
            said = f"{done.stdout}\n{done.stderr}"
            assert done.returncode in (0, 1), f"{block.name}: {command} ended with {done.returncode}:\n{said}"
            missing = [] if typed else missing_line(shown, said)
            assert missing == [], f"{block.name}: {command} does not print {missing[0]!r} but:\n{said}"

    def write(self, block: Block, name: str) -> None:
        """Keep a block as the file that the page calls it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.addresses(block.text), encoding="utf-8")

    def addresses(self, text: str) -> str:
        """The page's addresses as those of the cluster."""
        text = re.sub(r"(?:localhost|127\.0\.0\.1):11434", f"127.0.0.1:{self.cluster.port}", text)
        text = re.sub(r"(?:localhost|127\.0\.0\.1):11435", f"127.0.0.1:{self.cluster.grpc_port}", text)
        return text.replace("puna_…", self.environment.get("PUNA_API_KEY", "puna_…"))

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": os.pathsep.join([str(self.folder / "bin"), str(BIN), os.environ["PATH"]]),
            "PUNA_HOME": str(self.cluster.home),
            "OLLAMA_HOST": f"127.0.0.1:{self.cluster.port}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            "SERVERS": str(self.folder / "servers"),
            **self.environment,
        }


@dataclass(slots=True, kw_only=True)
class OwnDesk(Desk):
    """For blocks that start and stop clusters: homes and ports of their own, and nothing left behind."""

    port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)

    def addresses(self, text: str) -> str:
        """Homes below the folder; ports that are free, also where a page leaves them to their defaults."""
        text = re.sub(r"(?<=--port )\d+", str(free_port()), text)
        text = re.sub(r"(?<=--grpc-port )\d+", str(free_port()), text)
        text = text.replace("--home /srv/puna", f"--home {self.folder / 'other'}")
        text = re.sub(r"(?m)^((?:make|puna) up)(?= *(?:#|$))", self._with_ports, text)
        return re.sub(r"(?:localhost|127\.0\.0\.1):11434", f"127.0.0.1:{self.port}", text)

    def stop(self) -> None:
        """End what blocks have left running, as Ctrl-C does."""
        for pid in self._left():
            os.killpg(pid, signal.SIGINT)
        for pid in self._left():
            wait_until(partial(self._has_left, pid), deadline_s=STOP_S_MAX, what=f"process {pid} ends")

    def _has_left(self, pid: int) -> bool:
        return pid not in self._left()

    def _left(self) -> list[int]:
        noted = self.folder / "servers"
        pids = [int(pid) for pid in noted.read_text().split()] if noted.exists() else []
        return [pid for pid in pids if _lives(pid)]

    def _with_ports(self, match: re.Match[str]) -> str:
        home = self.folder / "home"
        if match[1].startswith("make"):
            return f"make up PORT={self.port} GRPC_PORT={self.grpc_port} HOME_DIR={home}"
        return f"puna up --port {self.port} --grpc-port {self.grpc_port}"

    def _environment(self) -> dict[str, str]:
        environment = Desk._environment(self) | {"PUNA_HOME": str(self.folder / "home")}
        return environment | {"PUNA_CONTEXT_LENGTH": "1024"}


def missing_line(shown: str, output: str) -> list[str]:
    """The first line of a page's output that did not come, in this order; words with figures may be others."""
    at = 0
    for line in shown.splitlines():
        words = [_word(word) for word in line.replace(ANYTHING, f" {ANYTHING} ").split()]
        pattern = r"[ \t]*".join(words)
        found = re.compile(pattern).search(output, at)
        if found is None:
            return [line]
        at = found.end()
    return []


def _word(word: str) -> str:
    if word == ANYTHING:
        return r"[\s\S]*?"
    if re.search(r"\d", word) or re.fullmatch(r"[kMGT]?i?B,?|m?s,?|%", word):
        return r"\S+"
    return re.escape(word)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def agrees(shown: str, output: str) -> bool:
    """Compare an output with a page's, line by line; "…" in the page stands for anything, also for several lines."""
    parts = [re.escape(" ".join(part.split())).replace(r"\ ", r"\s+") for part in shown.strip().split(ANYTHING)]
    return re.search(r"[\s\S]*?".join(part.strip() for part in parts), output.strip()) is not None

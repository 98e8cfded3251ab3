"""Checks of a shell block without running it: its commands exist, and take these arguments.

For blocks that no test can run, because they need a GPU, another machine, the internet or hours.
"""

import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import typer.main

from cli.command_line import app
from tools.docs_markdown import ROOT

_OPERATORS = frozenset({"&&", "||", "|", ";", "&"})
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_EXPORTED = re.compile(r"(?:^export|(?<=\S)) +([A-Z_]+)=(\S+)", re.MULTILINE)
_REDIRECTIONS = frozenset({"<", ">", ">>", "2>"})
_COMPOSE_COMMANDS = (
    "up",
    "down",
    "build",
    "ps",
    "logs",
    "exec",
    "cp",
    "pull",
    "restart",
    "stop",
    "kill",
    "run",
    "config",
)
COMMANDS: Any = typer.main.get_command(app)


def commands(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script, without variable assignments; redirections stay among their words."""
    for line in re.sub(r"\\\n\s*", " ", script).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, ";"]:
            if word in _OPERATORS:
                if command:
                    yield command[: next((at for at, part in enumerate(command) if part in _REDIRECTIONS), None)]
                command = []
            elif command or not _ASSIGNMENT.match(word):
                command.append(word)


def problems(script: str) -> list[str]:
    """Return the reasons why a script cannot be correct. Empty: none is known."""
    spoken = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    found = [spoken.stderr.strip()] if spoken.returncode else []
    exported = dict(_EXPORTED.findall(script))
    for command in commands(script):
        why = problem(command, exported)
        if why:
            found.append(f"{shlex.join(command)}: {why}")
    return found


def problem(command: Sequence[str], exported: Mapping[str, str]) -> str:
    """Return the reason why a command cannot run as written, after these exports; empty if none is known."""
    name, rest = command[0].removeprefix(".venv/bin/"), list(command[1:])
    if name == "puna":
        return puna_problem(rest)
    if name == "make":
        return _failure(["make", "--dry-run", "--old-file=.venv/.ready", *rest])
    if name in ("python", "python3") and rest[:1] == ["-m"]:
        return "" if importlib.util.find_spec(rest[1]) else f"there is no module {rest[1]}"
    if name == "kubectl" and "--kustomize" in rest and shutil.which("kubectl"):
        return _failure(["kubectl", "kustomize", rest[rest.index("--kustomize") + 1]])
    if name in ("docker-compose", "docker") and shutil.which(name):
        return _docker_problem(name, rest, exported)
    if "/" in name and not name.startswith(("/", "~", "$")) and not (ROOT / name).is_file():
        return f"there is no {name}"
    return ""


def puna_problem(words: Sequence[str]) -> str:
    """Return the reason why `puna` would refuse these words."""
    group: Any = COMMANDS
    rest, context = list(words), None
    try:
        while True:
            context = group.make_context(group.name, rest, parent=context)
            if not hasattr(group, "resolve_command"):
                return ""
            # typer has a copy of click of its own, whose groups keep the name of the command apart.
            if not (rest := [*context._protected_args, *context.args]):
                return ""  # a group that does something by itself
            _, group, rest = group.resolve_command(context, rest)
    except Exception as error:
        if type(error).__name__ in ("Exit", "NoArgsIsHelpError"):
            return ""
        if not hasattr(error, "exit_code"):
            raise
        return str(getattr(error, "message", "")) or type(error).__name__


def _docker_problem(name: str, rest: list[str], exported: Mapping[str, str]) -> str:
    if name == "docker" and rest[:1] == ["build"]:
        file = rest[rest.index("--file") + 1] if "--file" in rest else "Dockerfile"
        return "" if (ROOT / file).is_file() else f"there is no {file}"
    if name == "docker" and rest[:1] == ["compose"]:
        name, rest = "docker-compose", rest[1:]
    if name != "docker-compose" or not shutil.which("docker-compose"):
        return ""
    options = list(itertools.takewhile(lambda word: word not in _COMPOSE_COMMANDS, rest))
    if len(options) == len(rest):
        return f"no command of docker-compose among {_COMPOSE_COMMANDS}"
    if "--env-file" in options:  # the block writes it; the names that it puts there count as exported
        at = options.index("--env-file")
        del options[at : at + 2]
    return _failure(["docker-compose", *options, "config", "--quiet"], exported)


def _failure(command: list[str], environment: Mapping[str, str] = MappingProxyType({})) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else (done.stderr.strip() or done.stdout.strip() or "failed")[-600:]

"""Imports of a command at its start: nothing that only another command needs. Modules are compared, not times."""

import json
import os
import subprocess
import sys

import pytest

from cli.errors import ExitCode

# Prints which modules are loaded when the command is over, whatever its exit status.
_RUN = """
import json, sys
from cli.main import main
try:
    main()
except SystemExit:
    pass
print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))))
"""
_HTTP = {"httpx", "ssl"}
_SETTINGS = {"pydantic_settings", "common.settings"}
_SERVICES = {"grpc", "gateway", "runner", "scheduler", "discovery", "protos", "llama_cpp", "numpy", "redis"}


def loaded_by(*words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *words],
        env={**os.environ, "PUNA_HOST": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("load", "--help"), ("run", "--help")])
def test_help_brings_no_http_no_settings_and_no_tables(words: tuple[str, ...]) -> None:
    assert loaded_by(*words) & (_HTTP | _SETTINGS | _SERVICES | {"rich", "asyncio"}) == set()


@pytest.mark.parametrize("words", [("version",), ("ps",)])
def test_a_question_to_the_server_brings_no_service(words: tuple[str, ...]) -> None:
    brought = loaded_by(*words)
    assert brought & _SERVICES == set()
    assert {name for name in brought if name.startswith("cli.commands.")} == set()


# Sends itself Ctrl-C as soon as it wants the module that its first argument names; the rest is the command line.
_INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from cli.main import main
main()
"""


@pytest.mark.parametrize("module", ["cli.command_line", "typer", "cli.arguments.keys", "cli.server", "httpx"])
def test_ctrl_c_while_a_command_loads_ends_it_without_a_word(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, module, "ps"],
        env={**os.environ, "PUNA_HOST": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")

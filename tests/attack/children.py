"""Hostile code in processes that read model files: what it reaches of the machine and of the cluster (trust 3)."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import llama_cpp

from common.sandbox.confinement import NETWORK_VERSION, landlock_version
from tests.attack import shared_object
from tests.attack.stage import METADATA, Attack, NotRunnable, Outcome, Stage
from tests.e2e.namespaces import DISCOVERY_PORT
from tests.integration.runner.test_sandbox import SIGNALS, UNLIMITED, attacked, neighbour

# What a child needs for its work.
ALLOWED = frozenset({"own file", "privileges", "core limit"})
LENT = "measure --rpc"  # with a lent device: it may connect to its port, and resolve names
MODES = ("inspect", "measure", LENT, "serve", "probe", "rpc")
_REFUSED = "PermissionError"


def in_mode(attempt: Callable[[Stage, str], Outcome], mode: str) -> Callable[[Stage], Awaitable[Outcome]]:
    """Return the act that tries something in a mode of the runner, on kernels that can confine it."""

    async def act(stage: Stage) -> Outcome:
        if landlock_version() < NETWORK_VERSION:
            raise NotRunnable(f"this kernel has Landlock {landlock_version()}, not {NETWORK_VERSION}")
        return await asyncio.to_thread(attempt, stage, mode)

    return act


def _reach(stage: Stage, mode: str) -> Outcome:
    """Try each file and address of a running node once."""
    home = stage.home(stage.first)
    own, code = home / "models" / "demo.gguf", stage.directory / "code"
    code.mkdir(exist_ok=True)
    trust = str(stage.trust / "node" / "a") if stage.has_certificates else ""
    with stage.canary(), neighbour() as pid:
        found = attacked(
            arguments_of(mode, str(own), f"{home}/run"),
            code,
            tree=stage.tree,
            inside=("ip", "netns", "exec", stage.first.namespace),
            trust=trust,
            own=str(own),
            others={kind: str(path) for kind, path in _secrets(stage).items()},
            folder=str(home / "run"),
            new=str(home / "run" / "new"),
            connects={"discovery": [stage.first.address, DISCOVERY_PORT], "metadata": [METADATA, 80]},
            unix=str(home / "run" / "redis.sock"),
            neighbour=pid,
        )
    reached = [attempt for attempt, end in judged(found, mode) if end == "done"]
    return Outcome(bool(reached), f"reached: {', '.join(reached) or 'nothing'}")


def _load(stage: Stage, mode: str) -> Outcome:
    """Have the engine of a mode load a hostile backend module; first the same without confinement."""
    home, code = stage.home(stage.first), stage.directory / "shared"
    code.mkdir(exist_ok=True)
    own, program = home / "models" / "demo.gguf", home / "program.copy"
    shutil.copy("/bin/sh", program)
    engine = Path(llama_cpp.__file__).parent / "lib" / "libllama.so"
    with stage.canary(), neighbour() as pid:
        targets = shared_object.Targets(
            secrets={kind: str(path) for kind, path in _secrets(stage).items()},
            code={
                "the runner": str(stage.tree / "runner" / "__main__.py"),
                "the engine": str(engine.resolve()),
                "Python": os.__file__,
            },
            own=str(own),
            new=str(home / "run" / "new.copy"),
            connects={"discovery": (stage.first.address, DISCOVERY_PORT), "metadata": (METADATA, 80)},
            unix=str(home / "run" / "redis.sock"),
            program=str(program),
            neighbour=pid,
        )
        built = shared_object.build(code / shared_object.NAME, targets)
        (code / "sitecustomize.py").write_text(shared_object.LOADER.format(path=str(built)))
        bare = _results(stage, code, ["-c", f"import ctypes; ctypes.CDLL({str(built)!r})"])
        refused = shared_object.refused(bare)
        assert not refused, f"refused without confinement, too: {refused} of {bare}"
        Path(targets.new).unlink()
        _secrets(stage)
        found = _results(stage, code, arguments_of(mode, str(own), f"{home}/run"))
    reached = shared_object.reached(found, mode, landlock=landlock_version())
    return Outcome(bool(reached), f"{len(found)} attempts; reached: {', '.join(reached) or 'nothing'}")


def _results(stage: Stage, code: Path, command: list[str]) -> dict[str, int]:
    variables = {"PATH": os.environ["PATH"], "HOME": str(code), "PYTHONPATH": f"{code}:{stage.path}"}
    command = [*stage.inside, sys.executable, *command]
    done = subprocess.run(command, cwd=stage.tree, env=variables, capture_output=True, timeout=60, check=False)
    found = shared_object.results_in(done.stderr.decode(errors="replace"))
    assert found, f"it was not loaded: {done.stderr[-500:]!r}"
    return found


def arguments_of(mode: str, model: str, sockets: str) -> list[str]:
    """Return the arguments with which a node starts a mode of the runner."""
    arguments = {
        "inspect": [model],
        "measure": ["--model", model],
        LENT: ["127.0.0.1:9", "--model", model],
        "serve": ["--model", model, "--listen", f"unix:{sockets}/evil.sock"],
        "probe": [],
        "rpc": ["--device", "CPU"],
    }
    return ["-m", "runner", *mode.split(), *arguments[mode]]


def judged(found: dict[str, str], mode: str) -> list[tuple[str, str]]:
    """Return the attempts that have to be refused, with their results."""
    has_gained = found["privileges"] != "False"
    # Kernels before version 6 of Landlock cannot confine signals.
    allowed = ALLOWED | UNLIMITED.get(mode, set()) | (frozenset() if landlock_version() >= 6 else SIGNALS)
    allowed |= {"datagram"} if mode == LENT else set()
    attempts = [(attempt, end) for attempt, end in found.items() if attempt not in allowed]
    return [*attempts, ("new privileges", "done" if has_gained else _REFUSED)]


def _secrets(stage: Stage) -> dict[str, Path]:
    """Copies of files of the node beside the originals: the attack removes what it can."""
    home = stage.home(stage.first)
    originals = {"fence": home / "fence.json", "another model": home / "models" / "demo.gguf"}
    if stage.has_certificates:
        originals["key of the node"] = stage.trust / "node" / "a" / "tls.key"
    copies = {"pepper": home / "keys.pepper"}
    copies["pepper"].write_text("secret")
    for kind, original in originals.items():
        copies[kind] = original.with_name(f"{original.name}.copy")
        copies[kind].write_bytes(original.read_bytes() if original.exists() else b"17")
    return copies


INPUT = "files of the node and cluster, Redis, discovery, 169.254.169.254, signals, /proc, processes, limits"
ATTACKS = (
    *(Attack(name=f"hostile code in `{mode}`", row="3", input=INPUT, act=in_mode(_reach, mode)) for mode in MODES),
    *(
        Attack(name=f"shared object loaded into `{mode}`", row="3", input=shared_object.INPUT, act=in_mode(_load, mode))
        for mode in MODES
    ),
)

"""A Docker engine of the tests' own: as root, in its own namespaces, gone without a trace when it stops.

The engine gets a mount, network and process namespace. Its bridges, firewall rules and mounts live and die with them,
its containers die with their first process, and no container reaches any network but those that it makes. The test
machine keeps its own firewall, addresses and Docker engine, if it has one.
"""

import contextlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = (
    *("docker", "dockerd", "docker-compose", "docker-init", "containerd", "runc", "debootstrap", "iptables", "ip"),
    *("nsenter", "setpriv", "unshare"),
)
START_S = 30.0
STOP_S = 30.0
CGROUP_ROOT = Path("/sys/fs/cgroup")
# Beside a group every task of the root counts as one: without weight a whole cluster would get as much as one of them,
# and with much weight it would leave them nothing. This is six tasks, one for each role.
WEIGHTS = (("cpu", "cpu.shares", "6144"), (".", "cpu.weight", "600"))  # of the first and of the second hierarchy
# dockerd and containerd leave keys and directories in these places; the engine sees empty ones of its own. Images and
# containers (about 2 GB of Puna) lie in memory: deleting them file by file takes a disk longer than the tests do. The
# last exec makes dockerd the process that gets the signals which docker-init passes on.
START_SCRIPT = """
for place in /run /opt /etc/docker "$1"; do mount -t tmpfs -o size=8g tmpfs "$place"; done
ip link set lo up
shift
exec dockerd "$@"
"""


class EngineUnavailable(Exception):
    """No engine can run here; the text says exactly why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine. `docker` and `compose` raise RuntimeError with the output of a command that failed."""

    socket: Path
    pid: int  # first process of the engine's namespaces, as seen from outside
    cgroup: str  # parent of its containers' control groups

    def docker(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Run the docker client; return what it printed."""
        return _run(["docker", *arguments], environment=self._environment({}), timeout_s=timeout_s)

    def compose(self, *arguments: str, settings: Mapping[str, str], directory: Path, timeout_s: float) -> str:
        """Run docker-compose on the file in `directory`; `settings` are the file's variables."""
        environment = self._environment(settings)
        return _run(["docker-compose", *arguments], environment=environment, directory=directory, timeout_s=timeout_s)

    def run_beside(self, *command: str, namespaces: Sequence[str] = ("net",), timeout_s: float = 60.0) -> str:
        """Run a command in namespaces of the engine: its network, for one, where published ports are on loopback."""
        entered = [f"--{name}" for name in namespaces]
        return _run(["nsenter", "--target", str(self.pid), *entered, "--", *command], timeout_s=timeout_s)

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        # The classic builder is what every engine has; BuildKit's client is a plug-in that may be missing.
        inherited = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        return {**inherited, "DOCKER_HOST": f"unix://{self.socket}", "DOCKER_BUILDKIT": "0", **settings}


@contextlib.contextmanager
def running_engine(directory: Path) -> Iterator[Engine]:
    """Start an engine that keeps everything under `directory`; stop it and empty the directory at the end.

    Raises:
        EngineUnavailable: this machine lacks a program, a right or a kernel feature; skip and say so.
    """
    _check_requirements()
    directory.mkdir(parents=True, exist_ok=True)
    socket, cgroup = directory / "docker.sock", f"puna-test-{uuid.uuid4().hex[:12]}"
    log = directory / "dockerd.log"
    _weigh(cgroup)
    with log.open("wb") as output:
        process = subprocess.Popen(
            _start_command(directory, socket, cgroup), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        _wait_until_answering(process, socket, log)
        yield Engine(socket=socket, pid=_child_of(process.pid), cgroup=cgroup)
    finally:
        _stop(process)
        for group in control_groups(cgroup):
            with contextlib.suppress(OSError):  # what is left is reported by the test, not here
                group.rmdir()
        shutil.rmtree(directory, ignore_errors=True)


def control_groups(name: str) -> list[Path]:
    """Control groups of an engine, innermost first, in whichever hierarchy they are."""
    found: list[Path] = []
    for parent, names, _ in os.walk(CGROUP_ROOT, topdown=False):
        found += [Path(parent, child) for child in names if name in Path(parent, child).parts]
    return found


def _weigh(name: str) -> None:
    """Make the group before the engine does, with more than a task's share of busy processors."""
    for hierarchy, file, weight in WEIGHTS:
        if (CGROUP_ROOT / hierarchy / "cgroup.procs").exists():
            group = CGROUP_ROOT / hierarchy / name
            group.mkdir()
            if (group / file).exists():
                (group / file).write_text(weight)


def _check_requirements() -> None:
    if os.geteuid() != 0:
        raise EngineUnavailable("starting a Docker engine takes root")
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise EngineUnavailable(f"not installed: {', '.join(missing)} (`make deps-system` installs them)")


def _start_command(directory: Path, socket: Path, cgroup: str) -> list[str]:
    """If this process dies, unshare is killed, with it docker-init, with it all that runs in the namespaces."""
    data = directory / "data"
    data.mkdir()
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"),
        *("docker-init", "--", "sh", "-euc", START_SCRIPT, "start", str(data)),
        *("--host", f"unix://{socket}", "--pidfile", str(directory / "docker.pid")),
        *("--data-root", str(data), "--exec-root", str(directory / "exec")),
        *("--config-file", str(_empty_configuration(directory))),
        *("--cgroup-parent", cgroup, "--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level", "warn"),
    ]


def _empty_configuration(directory: Path) -> Path:
    """The machine's own engine settings are not the tests'."""
    path = directory / "daemon.json"
    path.write_text("{}")
    return path


def _wait_until_answering(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    ping = ["docker", "--host", f"unix://{socket}", "version", "--format", "{{.Server.Version}}"]
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise EngineUnavailable(f"dockerd exited with {process.returncode}: {_last_line(log)}")
        if subprocess.run(ping, capture_output=True, timeout=START_S, check=False).returncode == 0:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
    raise EngineUnavailable(f"dockerd did not answer within {START_S:.0f} s: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask dockerd to stop its containers; whatever still runs after STOP_S is killed with the namespace."""
    with contextlib.suppress(FileNotFoundError, IndexError, ProcessLookupError):
        os.kill(_child_of(process.pid), 15)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def _run(
    command: list[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    finished = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} … exited with {finished.returncode}:\n{finished.stdout[-8000:]}")
    return finished.stdout.strip()

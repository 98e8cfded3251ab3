"""Hostile code in the container of a host: in each mode of the runner, and in the place of the runner's program."""

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence

from common.sandbox.confinement import landlock_version
from tests.attack import shared_object
from tests.attack.children import MODES, arguments_of, in_mode, judged
from tests.attack.compose_stage import MODELS, ComposeStage
from tests.attack.stage import METADATA, Attack, Outcome, Stage
from tests.e2e.compose_cluster import HOSTS
from tests.integration.runner.test_sandbox import HOSTILE, WANTED, attempts_in

# Secrets of a host's container: copies beside the originals, because an attack removes what it can.
SECRETS = {
    "fence": "/var/lib/puna/fence.json.copy",
    "another model": "/usr/share/puna/models/other.copy",
    "pepper": "/var/lib/puna/keys.pepper",
    "key of the node": "/etc/puna/trust/tls.key",
}
PREPARE = """
mkdir -p -m 0700 /tmp/code /tmp/run
printf %s "$1" > /tmp/code/sitecustomize.py
cp /usr/share/puna/models/demo.gguf /usr/share/puna/models/other.copy
echo 17 > /var/lib/puna/fence.json.copy
echo secret > /var/lib/puna/keys.pepper
cp /bin/sh /var/lib/puna/program.copy
"""
LISTEN = (
    "import signal, socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/run/own.sock'); s.listen(); signal.pause()"
)
CLEAN = """
rm -rf /tmp/code /tmp/run /usr/share/puna/models/other.copy /var/lib/puna/keys.pepper /var/lib/puna/*.copy
"""
# What the code does without confinement, lest it is refused for another reason.
BARE = ("read fence", "read another model", "read pepper", "read key of the node", "write", "unix", "signal",
        "connect to discovery", "connect to scheduler", "connect to metadata", "connect to metadata by fast open",
        "datagram")  # fmt: skip
BARE_CALLS = ("read fence", "remove pepper", "write", "overwrite", "unix", "signal", "process", "neighbour: signal",
              "connect to discovery by tcp", "connect to metadata by tcp", "connect to metadata by fast_open",
              "start a program of the node")  # fmt: skip


def _reach(stage: Stage, mode: str) -> Outcome:
    """Run hostile code in a process of the host's container: by itself first, then in a mode of the runner."""
    assert isinstance(stage, ComposeStage)
    with stage.canary():
        try:
            bare = _attempts(stage, ["-c", "import runner.probe"])
            missing = [attempt for attempt in BARE if bare[attempt] != "done"]
            assert not missing, f"refused without confinement, too: {missing} of {bare}"
            found = _attempts(stage, arguments_of(mode, "/usr/share/puna/models/demo.gguf", "/tmp/run"))
        finally:
            stage.docker("exec", stage.place.containers["host"], "sh", "-c", CLEAN)
    reached = [attempt for attempt, end in judged(found, mode) if end == "done"]
    return Outcome(bool(reached), f"reached: {', '.join(reached) or 'nothing'}")


def _attempts(stage: ComposeStage, command: Sequence[str]) -> dict[str, str]:
    wanted = {
        "own": f"{MODELS}/demo.gguf",
        "others": SECRETS,
        "folder": "/var/lib/puna",
        "new": "/var/lib/puna/new.copy",
        "connects": _services(stage) | {"redis": (stage.place.addresses["redis"]["control"], 6379)},
        "unix": "/tmp/run/own.sock",
    }
    _prepare(stage)
    return attempts_in(_run(stage, command, {WANTED: json.dumps(wanted), "PYTHONPATH": "/tmp/code"}))


def _services(stage: ComposeStage) -> dict[str, tuple[str, int]]:
    """Return what the host itself can connect to."""
    addresses = stage.place.addresses
    return {
        "discovery": (addresses["discovery"]["nodes"], 7601),
        "scheduler": (addresses["scheduler"]["nodes"], 7602),
        "another host": (addresses[HOSTS[1]]["nodes"], 7603),
        "metadata": (METADATA, 80),
    }


def _prepare(stage: ComposeStage) -> None:
    """Place the secrets and the code in the host's container, and a socket that listens."""
    host = stage.place.containers["host"]
    stage.docker("exec", host, "sh", "-ec", PREPARE, "-", HOSTILE)
    stage.docker("exec", "--detach", host, "python", "-c", LISTEN)
    stage.docker("exec", host, "sh", "-c", "until [ -S /tmp/run/own.sock ]; do sleep 0.1; done")


def _run(stage: ComposeStage, command: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run Python in the host's container below a parent of its own to signal, as runners have their host."""
    words = [word for name, value in {"HOME": "/tmp", **variables}.items() for word in ("--env", f"{name}={value}")]
    in_shell = ("sh", "-c", '"$@"; rm -f /var/lib/puna/new.copy /tmp/run/own.sock', "-", "python", *command)
    return stage.docker("exec", *words, stage.place.containers["host"], *in_shell)


# Not in /tmp, whose file system starts no code.
OBJECTS = "/var/lib/puna/shared.copy"
PLACE = """
import base64, os, sys
os.makedirs(sys.argv[1], exist_ok=True)
open(sys.argv[1] + "/" + sys.argv[2], "wb").write(base64.b64decode(sys.argv[3]))
open(sys.argv[1] + "/sitecustomize.py", "w").write(sys.argv[4])
"""
FIND = "import os, llama_cpp, runner as r; print(*(one.__file__ for one in (r, llama_cpp, os)))"


def _load(stage: Stage, mode: str) -> Outcome:
    """Have the engine of a mode load a hostile backend module in the host's container; first without confinement."""
    assert isinstance(stage, ComposeStage)
    host, path = stage.place.containers["host"], f"{OBJECTS}/{shared_object.NAME}"
    code = stage.docker("exec", host, "python", "-c", FIND).split()[-3:]
    targets = shared_object.Targets(
        secrets=SECRETS,
        code=dict(zip(("the runner", "the engine", "Python"), code, strict=True)),
        own=f"{MODELS}/demo.gguf",
        new="/var/lib/puna/new.copy",
        connects=_services(stage),
        unix="/tmp/run/own.sock",
        program="/var/lib/puna/program.copy",
    )
    built = shared_object.build(stage.directory / shared_object.NAME, targets)
    content, loader = base64.b64encode(built.read_bytes()).decode(), shared_object.LOADER.format(path=path)

    def results(command: Sequence[str]) -> dict[str, int]:
        _prepare(stage)
        found = shared_object.results_in(_run(stage, command, {"PYTHONPATH": OBJECTS}))
        assert found, "it was not loaded"
        return found

    with stage.canary():
        try:
            stage.docker("exec", host, "python", "-c", PLACE, OBJECTS, shared_object.NAME, content, loader)
            bare = results(["-c", f"import ctypes; ctypes.CDLL({path!r})"])
            missing = [attempt for attempt in BARE_CALLS if attempt in shared_object.refused(bare)]
            assert not missing, f"refused without confinement, too: {missing} of {bare}"
            found = results(arguments_of(mode, f"{MODELS}/demo.gguf", "/tmp/run"))
        finally:
            stage.docker("exec", host, "sh", "-c", CLEAN)
    reached = shared_object.reached(found, mode, landlock=landlock_version())
    return Outcome(bool(reached), f"{len(found)} attempts; reached: {', '.join(reached) or 'nothing'}")


# A program that stands in the place of the runner's, without its confinement. First what it must not reach, then what
# a host has by its own rights.
REPLACED = """
import ctypes, json, os, socket, sys
import llama_cpp, runner

def can(act):
    try:
        act()
        return True
    except OSError:
        return False

def write_program():
    for top in (os.path.dirname(runner.__file__), os.path.dirname(llama_cpp.__file__), os.path.dirname(os.__file__)):
        for folder, _, names in os.walk(top):
            if any(os.access(os.path.join(folder, name), os.W_OK) for name in names) or os.access(folder, os.W_OK):
                return
    open(sys.executable, "r+b").close()

def mount():
    if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/mnt", b"tmpfs", 0, None):
        raise OSError

def hold():
    if not int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapBnd")), 16):
        raise OSError

def connect(address):
    socket.create_connection(tuple(address), 2).close()

wanted = json.loads(sys.argv[1])
print(json.dumps({
    "no": {
        "change a program of the image": can(write_program), "write below /": can(lambda: open("/x", "w")),
        "mount": can(mount), "hold a capability": can(hold), "become root": can(lambda: os.setuid(0)),
        "become the gateway's user": can(lambda: os.setuid(10002)),
        **{f"read {path}": can(lambda: open(path).read()) for path in wanted["files"]},
        **{f"connect to {name}": can(lambda: connect(address)) for name, address in wanted["no"].items()},
    },
    "yes": {
        **{f"read {name}": can(lambda: open(path, "rb").read(4)) for name, path in wanted["own"].items()},
        **{f"connect to {name}": can(lambda: connect(address)) for name, address in wanted["yes"].items()},
    },
}))
"""
_OF_OTHERS = ("/trust/ca/ca.key", "/var/lib/puna-gateway/keys.pepper", "/etc/puna/redis/users.acl", "/data/dump.rdb",
              "/var/run/docker.sock", "/proc/kcore", "/dev/mem")  # fmt: skip


async def replace_the_runner(stage: Stage) -> Outcome:
    """Run a script as the host starts runners, but without the runner's code; what lies beyond its node is damage."""
    assert isinstance(stage, ComposeStage)
    addresses, services = stage.place.addresses, _services(stage)
    wanted = {
        "files": _OF_OTHERS,
        "no": {"Redis": (addresses["redis"]["control"], 6379)},
        "own": {"the models of the node": f"{MODELS}/demo.gguf", "the key of the node": SECRETS["key of the node"]},
        "yes": services,
    }
    with stage.canary():
        host = stage.place.containers["host"]
        said = await asyncio.to_thread(stage.docker, "exec", host, "python", "-c", REPLACED, json.dumps(wanted))
    found = json.loads(said.splitlines()[-1])
    beyond, own = ([name for name, did in found[kind].items() if did] for kind in ("no", "yes"))
    assert "connect to discovery" in own
    seen = f"beyond its node: {', '.join(beyond) or 'nothing'}; as its host: {', '.join(own)}"
    return Outcome(bool(beyond), seen)


ATTACKS = (
    *(
        Attack(
            name=f"hostile code in `{mode}`", row="3", act=in_mode(_reach, mode),
            input="files of the host's container, discovery, scheduler, Redis, 169.254.169.254, signals, /proc, limits",
        )
        for mode in MODES
    ),
    *(
        Attack(name=f"shared object loaded into `{mode}`", row="3", input=shared_object.INPUT, act=in_mode(_load, mode))
        for mode in MODES
    ),
    Attack(
        name="script in the place of the runner's program", row="3", act=replace_the_runner,
        input="programs of the image, capabilities, mounts, users, files of other services, Redis",
    ),
)  # fmt: skip

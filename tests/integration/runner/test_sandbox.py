"""Hostile code inside real processes that read model files, templates, images and schemas: what it tries is refused.

The code runs in the process itself, after it was confined: in a runner while the mode's own modules are imported, in a
fork of the zygote while its command line is read, in a worker while it answers its first request.
"""

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from common.sandbox import confinement
from common.sandbox.confinement import NETWORK_VERSION, has_filters, landlock_version, readable
from common.sandbox.own_users import separation_fault
from protos import cluster_pb2
from runner.core.host.forks import FORKED_MODES
from runner.engine.media.image_decoder import WORKER_PATH
from runner.host.processes.children import run_child, runner_command
from runner.host.runners.runner_spec import to_argument
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.pictures import image_file, picture
from tests.integration.runner.processes import ROOT
from tests.running_zygote import running_zygote

pytestmark = pytest.mark.skipif(
    landlock_version() < NETWORK_VERSION, reason=f"this kernel has Landlock {landlock_version()}, not {NETWORK_VERSION}"
)

# Runs when the first module of the mode's own is imported, or with the first request of a worker: the process is
# confined by then.
HOSTILE = """
import ctypes, json, mmap, os, resource, signal, socket, struct, sys

def tried(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"

def connect(family, address):
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)

def open_fast(address):
    with socket.socket() as client:  # one that waits: others begin to connect, and report another error
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 2, 0))
        client.sendto(b"x", FAST_OPEN, address)

def connect_mptcp(address):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP) as client:
        client.settimeout(2)
        client.connect(address)

def call(name, *words):
    if library.syscall(*map(ctypes.c_long, (NUMBERS[name], *words))) < 0:
        raise OSError(ctypes.get_errno(), name)

def open_ring():
    parameters = ctypes.create_string_buffer(120)  # which the kernel fills
    call("io_uring_setup", 1, ctypes.addressof(parameters))

def transfer(name, pid):
    content = ctypes.create_string_buffer(8)
    piece = (ctypes.c_void_p * 2)(ctypes.addressof(content), 8)
    call(name, pid, ctypes.addressof(piece), 1, ctypes.addressof(piece), 1, 0)

def take_descriptor(pid):
    call("pidfd_getfd", os.pidfd_open(pid), 0, 0)

def fork():
    if os.fork() == 0:
        os._exit(0)

def crowd(most=4096):
    reading, writing = os.pipe()
    try:
        for _ in range(most):
            if os.fork() == 0:
                os.close(writing)
                os.read(reading, 1)  # until the others have begun, too
                os._exit(0)
    except BlockingIOError:
        raise PermissionError
    finally:
        os.close(writing)

def take_memory():
    try:
        mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except OSError:
        raise PermissionError

def take_files(most=4096):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    taken = []
    try:
        while len(taken) < most:
            taken.append(os.dup(2))
    except OSError:
        raise PermissionError
    finally:
        for descriptor in taken:
            os.close(descriptor)

def unlimit(kind):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2)
    except ValueError:
        raise PermissionError

def capabilities():
    held = (ctypes.c_uint32 * 6)()
    library.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held)
    return any(word & ~READ_FILES for word in held)

library = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271},
}[os.uname().machine] | {"pidfd_getfd": 438, "io_uring_setup": 425}
PTRACE_SEIZE = 0x4206
FAST_OPEN, MPTCP = 0x20000000, 262
READ_FILES = 1 << 2  # of other users, where Landlock lets it
MAP_NORESERVE = 0x4000

def of_neighbour(pid):
    return {
        "neighbour: signal": tried(lambda: os.kill(pid, 0)),
        "neighbour: signal by pidfd": tried(lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 0)),
        "neighbour: environment": tried(lambda: open(f"/proc/{pid}/environ").read()),
        "neighbour: memory": tried(lambda: open(f"/proc/{pid}/mem", "r+b")),
        "neighbour: read memory": tried(lambda: transfer("process_vm_readv", pid)),
        "neighbour: write memory": tried(lambda: transfer("process_vm_writev", pid)),
        "neighbour: descriptor": tried(lambda: take_descriptor(pid)),
        "neighbour: trace": tried(lambda: call("ptrace", PTRACE_SEIZE, pid, 0, 0)),
    }

def attack():
    with_privileges = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) != 1
    found = {
        "own file": tried(lambda: open(wanted["own"], "rb").read(4)),
        "passwords": tried(lambda: open("/etc/passwd").read()),
        "list": tried(lambda: os.listdir(wanted["folder"])),
        "write": tried(lambda: open(wanted["new"], "w")),
        "overwrite": tried(lambda: open(wanted["own"], "r+b")),
        "unix": tried(lambda: connect(socket.AF_UNIX, wanted["unix"])),
        "datagram": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "io_uring": tried(open_ring),
        "signal": tried(lambda: os.kill(os.getppid(), 0)),
        "environment": tried(lambda: open(f"/proc/{os.getppid()}/environ").read()),
        "privileges": str(with_privileges or capabilities()),
        "core limit": str(resource.getrlimit(resource.RLIMIT_CORE)),
        "core": tried(lambda: unlimit(resource.RLIMIT_CORE)),
        "process": tried(fork),
        "memory": tried(take_memory),
        "processor time": tried(lambda: unlimit(resource.RLIMIT_CPU)),
        "open files": tried(take_files),
        **of_neighbour(wanted.get("neighbour") or os.getppid()),
    }
    for name, address in wanted["connects"].items():
        found[f"connect to {name}"] = tried(lambda: connect(socket.AF_INET, tuple(address)))
        found[f"connect to {name} by fast open"] = tried(lambda: open_fast(tuple(address)))
        found[f"connect to {name} by MPTCP"] = tried(lambda: connect_mptcp(tuple(address)))
    for name, path in wanted["others"].items():
        found[f"read {name}"] = tried(lambda: open(path, "rb").read(4))
        found[f"remove {name}"] = tried(lambda: os.unlink(path))
    if "is_worker" in wanted:
        found["program"] = tried(lambda: os.execv(sys.executable, ["python", "-c", ""]))
    write(2, b"ATTACK " + json.dumps(found).encode() + b"\\n")
    os._exit(0)

wanted = json.loads(os.environ["LC_ATTACK"])
write = os.write

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name in ("runner.inspect", "runner.measure", "runner.probe", "runner.serve.app", "runner.rpc"):
            attack()

if "is_worker" in wanted:
    json.loads = os.write = lambda *_: attack()
elif "is_fork" in wanted:  # its modules are imported before it is confined; its command line is read afterwards
    import argparse
    parse = argparse.ArgumentParser.parse_args
    argparse.ArgumentParser.parse_args = lambda parser: parse(parser) if sys.argv[1] == "zygote" else attack()
else:
    sys.meta_path.insert(0, Trap())
"""
# Of the environment: what the code shall try, as JSON. Runners get variables of locales.
WANTED = "LC_ATTACK"
_REFUSED = "PermissionError"
SIGNALS = frozenset({"signal", "neighbour: signal", "neighbour: signal by pidfd"})


def attacked(
    command: list[str],
    code: Path,
    request: bytes = b"",
    *,
    tree: Path = ROOT,
    inside: Sequence[str] = (),
    trust: str = "",
    **wanted: Any,
) -> dict[str, str]:
    """Run a Python command with hostile code in it; what each of its attempts came to. `inside`: what runs it."""
    (code / "sitecustomize.py").write_text(HOSTILE)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(code),
        "PYTHONPATH": f"{code}:{tree}",
        WANTED: json.dumps(wanted),
        "PUNA_TRUST": trust or str(wanted["folder"]),
    }
    done = subprocess.run(
        [*inside, sys.executable, *command],
        cwd=tree,
        env=environment,
        input=request,
        capture_output=True,
        check=False,
        timeout=120,
    )
    return attempts_in(done.stderr.decode())


def attempts_in(output: str) -> dict[str, str]:
    """Return the result of each attempt, as hostile code printed it."""
    lines = [line for line in output.splitlines() if line.startswith("ATTACK ")]
    assert lines, f"the code did not come to its end: {output[-2000:]}"
    found: dict[str, str] = json.loads(lines[0].removeprefix("ATTACK "))
    return found


@contextmanager
def neighbour() -> Iterator[int]:
    """Run another runner of the same user, with the same confinement; yield its pid."""
    code = "from common.sandbox.confinement import Limits, confine; confine([], Limits()); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is confined
        yield process.pid
        assert process.poll() is None
        process.kill()


@contextmanager
def surroundings(tmp_path: Path) -> Iterator[tuple[Path, Path, dict[str, Any]]]:
    """Folders of a home with a secret and of the hostile code, and what the code shall try."""
    home, code = tmp_path / "home", tmp_path / "code"
    home.mkdir()
    code.mkdir()
    (home / "fence").write_text("17")
    with neighbour() as pid, socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"{home}/discovery.sock")
        unix.listen()
        yield (
            home,
            code,
            {
                "others": {"fence": str(home / "fence")},
                "folder": str(home),
                "new": str(home / "new"),
                "connects": {"tcp": tcp.getsockname(), "metadata": ("169.254.169.254", 80)},
                "unix": f"{home}/discovery.sock",
                "neighbour": pid,
            },
        )
    assert (home / "fence").read_text() == "17"


def test_a_kernel_says_whether_it_takes_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_filters()
    monkeypatch.setattr(confinement, "_MACHINES", {})  # as on a processor that has no numbers of calls here
    assert not has_filters()


def test_models_below_the_systems_folders_are_not_readable() -> None:
    """The image's store is in /usr/share, as is that of Ollama where it is a service."""
    folders = set(readable(["-m"]))
    for store in ("/usr/share/puna/models", "/usr/share/ollama/.ollama/models"):
        assert not folders & {Path(store), *Path(store).parents}, store


HELD = """
import sys
from common.sandbox.confinement import Limits, confine

confine(sys.argv[1:], Limits())
held = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapPrm"))
print(int(held, 16), *(len(open(path).read()) for path in sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities, and files of other users")
@pytest.mark.parametrize(("owner", "held"), [(0, 0), (1234, 1 << 2)])
def test_a_runner_of_root_keeps_a_capability_only_to_read_files_of_another_user(
    owner: int, held: int, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    (folder / "model").write_text("model")
    (folder / "model").chmod(0o600)
    for path in (folder / "model", folder):
        os.chown(path, owner, owner)
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(folder / "model")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(held), "5"]


# As a host of root starts a runner, on a kernel that has neither Landlock nor filters.
OWN_USER_ALONE = """
import json, os, sys
import common.sandbox.confinement as confinement

confinement.landlock_version, confinement._forbid_calls = lambda: 0, lambda *_, **__: None
confinement.confine(["--own-user", *sys.argv[1:]], confinement.Limits())
"""


@pytest.mark.skipif(
    separation_fault() != "", reason=f"a host of this user cannot separate runners: {separation_fault()}"
)
def test_users_of_their_own_keep_runners_apart_on_any_kernel(tmp_path: Path) -> None:
    listen = """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1].removeprefix("unix:"))
server.listen()
print(os.getuid(), flush=True)
input()
"""
    folders = [tmp_path / name for name in ("neighbour", "attacker")]
    for folder in folders:
        folder.mkdir(mode=0o700)
    (tmp_path / "secret").write_text("17")
    (tmp_path / "secret").chmod(0o600)
    of_neighbour, own = (f"unix:{folder}/sock" for folder in folders)
    command = [sys.executable, "-c", OWN_USER_ALONE + listen, of_neighbour]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        user = int(process.stdout.readline())
        attempts = f"""
print(json.dumps({{
    **of_neighbour({process.pid}),
    "neighbour: socket": tried(lambda: connect(socket.AF_UNIX, {str(folders[0] / "sock")!r})),
    "neighbour: folder": tried(lambda: open({str(folders[0] / "new")!r}, "w")),
    "write": tried(lambda: open({str(tmp_path / "secret")!r}, "r+b")),
    "remove": tried(lambda: os.unlink({str(tmp_path / "secret")!r})),
    "host: signal": tried(lambda: os.kill(os.getppid(), 0)),
    "host: trace": tried(lambda: call("ptrace", PTRACE_SEIZE, os.getppid(), 0, 0)),
    "root": tried(lambda: os.setuid(0)),
    "crowd": tried(crowd),
}}), os.getuid())
"""
        code = OWN_USER_ALONE + HOSTILE.partition("wanted = ")[0] + attempts
        done = subprocess.run(
            [sys.executable, "-c", code, own], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
        assert process.poll() is None
        process.kill()
    found, attacker = done.stdout.rsplit(maxsplit=1)
    assert json.loads(found) == dict.fromkeys(json.loads(found), _REFUSED)
    assert 0 != user != int(attacker) != 0
    assert {folder.stat().st_uid for folder in folders} == {user, int(attacker)}


@pytest.mark.skipif(separation_fault() != "", reason="as above")
def test_a_runner_stays_root_where_another_user_could_not_read_its_model() -> None:
    """As with a file system of FUSE, whose files no capability opens: here the environment of a process of root."""
    with neighbour() as pid:
        command = [sys.executable, "-c", f"{OWN_USER_ALONE}\nprint(os.getuid())", f"/proc/{pid}/environ"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


# Where the drivers of NVIDIA, ROCm, Mesa and Vulkan's loader have files, by the places of their packages.
OF_DRIVERS = (
    "etc/OpenCL/vendors/nvidia.icd",
    "etc/glvnd/egl_vendor.d/10_nvidia.json",
    "etc/nvidia/nvidia-application-profiles-rc.d/profile",
    "etc/vulkan/icd.d/nvidia_icd.json",
    "opt/amdgpu/share/libdrm/amdgpu.ids",
    "opt/cuda-12.6/lib64/libcudart.so.12",
    "opt/rocm-6.2.4/lib/rocblas/library/TensileLibrary.dat",
    "usr/share/OpenCL/vendors/pocl.icd",
    "usr/share/drirc.d/00-mesa-defaults.conf",
    "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/libdrm/amdgpu.ids",
    "usr/share/nvidia/nvidia-application-profiles-560.35.03-rc",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "srv/drivers/own_icd.json",  # that VK_DRIVER_FILES names
)
OF_OTHERS = (
    "etc/puna/trust/tls.key",
    "opt/puna-secrets/key",
    "usr/share/ollama/.ollama/models/blob",
    "srv/drivers/key",
)
READ = """
import json, sys
from common.sandbox.confinement import Limits, confine

confine(["-m"], Limits())
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = open(name).read()
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_confined_process_reads_the_files_of_gpu_drivers_wherever_they_are(tmp_path: Path) -> None:
    """Their folders are laid over those of this machine, in a mount namespace."""
    for name in (*OF_DRIVERS, *OF_OTHERS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("driver")
    over = "for top in etc opt usr/share srv; do mount -t overlay -o lowerdir=$1/$top:/$top overlay /$top; done"
    command = [sys.executable, "-c", READ, *(f"/{name}" for name in (*OF_DRIVERS, *OF_OTHERS))]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", f'{over}; shift; exec "$@"', "-", str(tmp_path), *command],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "VK_DRIVER_FILES": "/srv/drivers/own_icd.json"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        **{f"/{name}": "driver" for name in OF_DRIVERS},
        **{f"/{name}": _REFUSED for name in OF_OTHERS},
    }


# Serving takes time, memory, files, and a process that decodes images; lending takes time and memory, and a worker is
# ended by a timer and at last by its service.
UNLIMITED = {
    "serve": {"memory", "processor time", "open files", "process"},
    "rpc": {"memory", "processor time"},
    "templates": {"processor time"},
    "constraints": {"processor time"},
}


def check_refused(found: dict[str, str], what: str) -> None:
    assert found.pop("privileges") == "False"
    assert found.pop("core limit") == "(1, 1)"  # with 0, the kernel would still start a program in `core_pattern`
    for attempt in UNLIMITED.get(what, ()):
        assert found.pop(attempt) == "done"
    if landlock_version() < 6:  # older kernels cannot confine signals
        for attempt in SIGNALS:
            found.pop(attempt)
    assert found == dict.fromkeys(found, _REFUSED)


CONNECT_UNSEEN = """
import json, sys
found = {}
with socket.create_server(("127.0.0.1", 0)) as server:
    address = server.getsockname()
    if sys.argv[1:]:
        from common.sandbox.confinement import Limits, confine
        confine(sys.argv[1:], Limits())
    found["connect"] = tried(lambda: connect(socket.AF_INET, address))
    found["fast open"] = tried(lambda: open_fast(address))
    found["MPTCP"] = tried(lambda: connect_mptcp(address))
print(json.dumps(found))
"""


@pytest.mark.parametrize("words", [[], ["-m"], ["-m", "traces"]])
def test_connections_that_landlock_does_not_see_are_refused(words: list[str]) -> None:
    """A process may connect to a collector of traces: Landlock's rule of ports is all that is in the way."""
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"} if "traces" in words else {}
    code = f"{HOSTILE.partition('wanted = ')[0]}\n{CONNECT_UNSEEN}"
    environment = {"PATH": os.environ["PATH"], **traces}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == dict.fromkeys(("connect", "fast open", "MPTCP"), _REFUSED if words else "done")


def test_what_is_tried_at_a_neighbour_succeeds_without_confinement() -> None:
    """Root, or a user without Yama, has these rights; they are what the tests below see refused."""
    with neighbour() as pid:
        code = f"{HOSTILE.partition('wanted = ')[0]}\nprint(json.dumps(of_neighbour({pid})))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    # The address is one of the other process's; that it is not mapped there shows that the check was passed.
    for attempt in ("neighbour: read memory", "neighbour: write memory"):
        assert found.pop(attempt) in ("done", "OSError")
    assert found == dict.fromkeys(found, "done")


def runner_arguments(home: Path, model: Path) -> dict[str, list[str]]:
    """Return what follows a mode on the command line."""
    return {
        "inspect": [str(model)],
        "measure": ["--model", str(model)],
        "serve": ["--model", str(model), "--listen", f"unix:{home}/runner.sock", "--name", "rpc_address"],
        "probe": [],
        "rpc": ["--device", "CPU"],
    }


@pytest.mark.parametrize("mode", ["inspect", "measure", "serve", "probe", "rpc"])
def test_hostile_code_in_a_runner_reaches_its_own_file_only(mode: str, zoo: Zoo, tmp_path: Path) -> None:
    model = zoo("dense")
    with surroundings(tmp_path) as (home, code, wanted):
        words = runner_arguments(home, model)[mode]
        found = attacked(runner_command(mode, words)[1:], code, own=str(model), **wanted)
    if str(model) in words:
        assert found.pop("own file") == "done"
    check_refused(found, mode)


@pytest.mark.parametrize("mode", FORKED_MODES)
async def test_hostile_code_in_a_forked_runner_reaches_no_more(
    mode: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo("dense")
    with surroundings(tmp_path) as (home, code, wanted):
        (code / "sitecustomize.py").write_text(HOSTILE)
        monkeypatch.setenv("PYTHONPATH", f"{code}:{ROOT}")
        monkeypatch.setenv(WANTED, json.dumps({**wanted, "own": str(model), "is_fork": True}))
        words = runner_arguments(home, model)[mode]
        async with running_zygote(tmp_path) as zygote:
            done = await run_child(mode, words, timeout_s=60)
            assert zygote.process is not None  # what it tried to signal
            assert not zygote.process.exited.is_set()
        found = attempts_in(done.last_line)
    if str(model) in words:
        assert found.pop("own file") == "done"
    check_refused(found, mode)


def lent_arguments(option: str, port: int) -> list[str]:
    """Return the arguments that name a lent device at a port of this machine."""
    address = f"127.0.0.1:{port}"
    device = cluster_pb2.DeviceLayers(device_id="n/GPU", rpc_address=address)
    return [option, address if option == "--rpc" else to_argument(cluster_pb2.Layout(devices=[device]))]


@pytest.mark.parametrize(
    ("mode", "option"), [("serve", "--layout"), ("measure", "--layout"), ("measure", "--rpc"), ("probe", "--rpc")]
)
def test_hostile_code_in_a_runner_with_a_lent_device_reaches_that_port_alone(
    mode: str, option: str, zoo: Zoo, tmp_path: Path
) -> None:
    model = zoo("dense")
    with surroundings(tmp_path) as (home, code, wanted), socket.create_server(("127.0.0.1", 0)) as lent:
        wanted["connects"]["lent"] = lent.getsockname()
        words = [*runner_arguments(home, model)[mode], *lent_arguments(option, lent.getsockname()[1])]
        found = attacked(["-m", "runner", mode, *words], code, own=str(model), **wanted)  # with the host's user
    if mode != "probe":
        assert found.pop("own file") == "done"
    assert found.pop("connect to lent") == found.pop("datagram") == "done"  # names are resolved with datagrams
    if mode == "serve":  # it listens on one
        assert found.pop("unix") == "done"
    check_refused(found, mode)


_PICTURE = image_file(picture(1))
WORKERS = {
    "templates": (["-s", "-m", "gateway.templates.worker"], struct.pack(">I", 2) + b"{}"),
    "constraints": (["-s", "-m", "runner.check_constraints"], struct.pack(">I", 2) + b"{}"),
    "images": (["-P", str(WORKER_PATH)], struct.pack(">8sIII", b"PNG", 160, 96, len(_PICTURE)) + _PICTURE),
}


@pytest.mark.parametrize("name", WORKERS)
def test_hostile_code_in_a_worker_reaches_nothing(name: str, tmp_path: Path) -> None:
    command, request = WORKERS[name]
    with surroundings(tmp_path) as (home, code, wanted):
        check_refused(attacked(command, code, request, own=str(home / "fence"), is_worker=True, **wanted), name)

"""Confinement of a process that reads hostile files or texts: what they make it do stays within it.

Entered while there is one thread, because Landlock holds for the calling thread and for threads and processes that
begin later. From then on the process gains no privileges, has none of root's, leaves no core file, signals nothing
outside, reads its model's files and the system's libraries only, creates nothing but its own socket, and connects to
nothing unless it uses lent devices or sends traces (with GPUs or traces it may connect to Unix sockets). A worker that
only computes has no device, no socket and no program either. Kernels without Landlock give less; `puna doctor` reports
it.

Source: Documentation/userspace-api/landlock.rst of Linux.
"""

import ctypes
import errno
import os
import resource
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2  # of prctl
_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)  # of capset: version 3, this thread
_READ_ANY = 1 << 2  # CAP_DAC_READ_SEARCH
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_ASK_VERSION, _PATH_BENEATH, _PORT = 1, 1, 2

# What the kernel calls the processor, and its numbers of io_uring_setup, which could connect too, connect and socket.
_MACHINES = {"x86_64": (0xC000003E, (425, 42, 41)), "aarch64": (0xC00000B7, (425, 203, 198))}
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _RETURN = 0x20, 0x15, 0x25, 0x06  # of BPF
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000  # an errno is added to the first
_X32_BIT = 0x3FFFFFFF
# Rights on files, by bit.
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 0x1, 0x2, 0x4, 0x8
_MAKE_SOCKET, _TRUNCATE, _IOCTL = 0x200, 0x4000, 0x8000
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_RIGHTS_LATEST = 0xFFFF
_CONNECT_TCP = 0x2  # since version 4
_SCOPES = 0x3  # abstract sockets and signals, since version 6
NETWORK_VERSION = 4

_LIBRARIES = ("/lib", "/lib64", "/sys")
# Of drivers and their libraries; versions may stand side by side.
_VENDORS = ("amdgpu", "cuda*", "rocm*")
# Not all of /usr/share: stores of models are there, in the image and where Ollama is a service.
_SHARED = (
    *("ca-certificates", "drirc.d", "egl", "glvnd", "hwdata", "libdrm", "locale", "misc", "nvidia", "OpenCL"),
    *("vulkan", "zoneinfo"),
)
# Not all of it: there, environments of other processes of the same user can be read.
_PROC = (
    "meminfo",
    "cpuinfo",
    "stat",
    "filesystems",
    "devices",
    "modules",
    "version",
    "uptime",
    "driver",
    "pressure",
    "sys",
)
_CONFIGURATION = (
    *("drirc", "egl", "glvnd", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "nvidia", "OpenCL", "resolv.conf"),
    *("ssl", "vulkan"),
)
# Folders of libraries and modules, and the drivers of Vulkan where their place is not a usual one.
_GIVEN = ("LD_LIBRARY_PATH", "PYTHONPATH", "VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_CARDS = ("nvidia*", "nvgpu", "nvhost*", "nvmap", "kfd", "dxg")
_DEVICES = ("null", "zero", "full", "random", "urandom", *_CARDS, "dri", "shm")
_COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_COLLECTOR_PORTS = (80, 443, 4317, 4318)
_CUDA_CACHE = "~/.nv/ComputeCache"


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has; 0: none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))))


def confine(arguments: Sequence[str]) -> None:
    """Confine this process to what its command line names: files to read, the folder of a socket, lent devices."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    own = tuple(readable(arguments))
    _enter(library, own)
    ports = collector_ports()
    if not uses_lent_devices(arguments) and not any(_nodes(_CARDS)) and not ports:
        _forbid_calls(library, 2)
    files = (
        (own, _READ | _READ_FOLDER | _EXECUTE),
        (chain(_nodes(_DEVICES), [Path("/proc/self")]), _READ | _READ_FOLDER | _WRITE | _IOCTL),
        # A folder in the place of a file is named as such by the error of its opening.
        ((Path(text) for text in arguments if os.path.isdir(text)), _READ_FOLDER),  # noqa: PTH112  # takes any text
        (_socket_folders(arguments), _MAKE_SOCKET),
        (_caches(), _RIGHTS_LATEST),
    )
    _restrict(library, files, ports, connects=uses_lent_devices(arguments))


def confine_worker(*, reads_libraries: bool = True) -> None:
    """Confine this process, which only computes, to its open files and, unless all is imported, Python's modules."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    files = tuple(readable(())) if reads_libraries else ()
    _enter(library, files)
    _forbid_calls(library, 3)
    _restrict(library, ((files, _READ | _READ_FOLDER),))


def _enter(library: ctypes.CDLL, files: Iterable[Path]) -> None:
    """Give up privileges for good. Root keeps the capability to read files of other users if it has to read some."""
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    is_root = _hold(library, permitted=_READ_ANY)
    if is_root and any(map(_is_refused, files)):
        _hold(library, effective=_READ_ANY, permitted=_READ_ANY)
    else:
        _hold(library)


def _hold(library: ctypes.CDLL, *, effective: int = 0, permitted: int = 0) -> bool:
    """Hold these capabilities and no others; False: one of them was not held."""
    return not library.capset(_CAPABILITIES, struct.pack("=6I", effective, permitted, 0, 0, 0, 0))


def _is_refused(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _restrict(
    library: ctypes.CDLL,
    files: Iterable[tuple[Iterable[Path], int]],
    ports: Iterable[int] = (),
    *,
    connects: bool = False,
) -> None:
    """Take away all rights to files but these, and TCP connections but to these ports, unless it `connects`."""
    version = landlock_version()
    if not version:
        return
    rights = _RIGHTS.get(version, _RIGHTS_LATEST)
    network = _CONNECT_TCP if version >= NETWORK_VERSION and not connects else 0
    fields = struct.pack("QQQ", rights, network, _SCOPES if version > 5 else 0)
    size = 8 if version < NETWORK_VERSION else 16 if version < 6 else 24
    ruleset = library.syscall(_CREATE, fields, ctypes.c_size_t(size), ctypes.c_uint32(0))
    if ruleset < 0:
        return
    for paths, allowed in files:
        for path in paths:
            _allow(library, ruleset, path, allowed & rights)
    for port in ports if network else ():
        rule = struct.pack("=QQ", network, port)
        library.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PORT), rule, ctypes.c_uint32(0))
    library.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _forbid_calls(library: ctypes.CDLL, count: int) -> None:
    """Refuse the first `count` calls of the table: Landlock lets Unix sockets through. Drivers of GPUs connect."""
    if os.uname().machine not in _MACHINES:
        return
    machine, numbers = _MACHINES[os.uname().machine]
    refused = [(_JUMP_IF_EQUAL, count - place, 0, number) for place, number in enumerate(numbers[:count])]
    program = b"".join(
        struct.pack("=HBBI", *step)
        for step in (
            (_LOAD, 0, 0, 4),  # the machine that the call is for
            (_JUMP_IF_EQUAL, 0, count + 3, machine),
            (_LOAD, 0, 0, 0),  # the number of the call
            (_JUMP_IF_GREATER, count + 1, 0, _X32_BIT),
            *refused,
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE | errno.EACCES),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    library.prctl(_SET_SECCOMP, _SECCOMP_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(steps)))


def _allow(library: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Add a rule for a file or a whole folder; a path that is gone needs none."""
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    allowed = rights if path.is_dir() else rights & _OF_FILES
    rule = struct.pack("=Qi", allowed, target)
    library.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    os.close(target)


def readable(arguments: Iterable[str]) -> Iterator[Path]:
    """Yield the system's libraries, Python and its modules, and the files that the command line names."""
    own = Path(__file__).resolve().parents[2]
    # Not sys.path: it begins with the working directory, which may be the folder of all models.
    code = [str(own / name) for name in ("common", "protos", "runner", "tests")]
    code += [] if sys.prefix == sys.base_prefix else [sys.prefix]
    code += [f"{sys.base_prefix}/{name}" for name in ("bin", "lib", "lib64")]  # the base may be /usr
    given = (os.environ.get(name, "") for name in _GIVEN)
    libraries = filter(None, ":".join(given).split(":"))
    named = (text.rpartition("=")[0] or text for text in arguments)  # --adapter PATH=SCALE
    files = (text for text in chain(arguments, named) if os.path.isfile(text))  # noqa: PTH113  # takes any text
    system = (*_LIBRARIES, *(f"/etc/{name}" for name in _CONFIGURATION), *(f"/proc/{name}" for name in _PROC))
    shared = (f"/usr/share/{name}" for name in _SHARED)
    programs = (path for path in Path("/usr").glob("*") if path.name != "share")
    vendors = chain.from_iterable(Path("/opt").glob(name) for name in _VENDORS)
    return chain(programs, vendors, (Path(text) for text in chain(system, shared, code, libraries, files)))


def _socket_folders(arguments: Iterable[str]) -> Iterator[Path]:
    return (Path(text.removeprefix("unix:")).parent for text in arguments if text.startswith("unix:"))


def _caches() -> Iterator[Path]:
    """Yield CUDA's cache of compiled kernels."""
    yield Path(os.environ.get("CUDA_CACHE_PATH") or _CUDA_CACHE).expanduser()


def collector_ports() -> frozenset[int]:
    """Return the ports of a collector of traces; empty: nothing is traced."""
    found = [text for name in _COLLECTORS if (text := os.environ.get(name))]
    ports = [urlsplit(text if "//" in text else f"//{text}").port for text in found]
    return frozenset(chain.from_iterable((port,) if port else _COLLECTOR_PORTS for port in ports))


def uses_lent_devices(arguments: Iterable[str]) -> bool:
    """Return True if the process connects to devices of other nodes."""
    return any(text == "--rpc" or "rpcAddress" in text or "rpc_address" in text for text in arguments)


def _nodes(names: Iterable[str]) -> Iterator[Path]:
    return chain.from_iterable(Path("/dev").glob(name) for name in names)

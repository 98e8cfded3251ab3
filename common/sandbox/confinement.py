"""Confinement of a process that reads hostile files or texts: what they make it do stays within it.

Entered while there is one thread, because Landlock holds for the calling thread and for threads and processes that
begin later. From then on the process gains no privileges, has none of root's, leaves no core file, signals nothing
outside, reads its model's files and the system's libraries only, creates nothing but its own socket, and connects to
nothing but the ports of its lent devices and of a collector of traces (with either, a runner that listens on a Unix
socket may connect to such sockets, and so may all with GPUs). Runners of a host of root are users of their own. Runners
that serve nothing start no processes, and those that end soon have limits of processor time, memory and open files. A
worker that only computes has no device, no socket and no program either. Kernels without Landlock or seccomp filters
give less; `puna doctor` reports it.

Source: Documentation/userspace-api/landlock.rst of Linux; for core files fs/coredump.c, core(5).
"""

import ctypes
import errno
import os
import re
import resource
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from urllib.parse import urlsplit

_SET_DUMPABLE, _KEEP_CAPABILITIES, _SET_SECCOMP, _NO_NEW_PRIVILEGES, _AMBIENT = 4, 8, 22, 38, 47  # of prctl
_SECCOMP_FILTER, _RAISE = 2, 2
_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0)  # of capset: version 3, this thread
_DAC_READ_SEARCH = 2
_READ_ANY = 1 << _DAC_READ_SEARCH
# What a host of root needs, so that its runners are users of their own: to become one, hand it its folder, end it,
# connect to its sockets, and find it again after a restart; and that a runner reads files in folders of root.
SEPARATION = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": _DAC_READ_SEARCH,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SYS_PTRACE": 19,
}
OWN_USER = "--own-user"  # on the command line
# One for each number of a process, so that no two that live have the same. Above the ranges of distributions,
# containers and directory services, below 2^31.
RUNNER_USERS = range(0x7E00_0000, 0x7E00_0000 + (1 << 22))
# Threads and processes of a runner: several pools with one for each core, those of gRPC and of drivers.
_TASKS_MAX, _TASKS_PER_CORE = 256, 16
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_ASK_VERSION, _PATH_BENEATH, _PORT = 1, 1, 2

# What the kernel calls the processor, and its numbers of calls.
_MACHINES = {
    "x86_64": (
        0xC000003E,
        {"io_uring_setup": 425, "connect": 42, "socket": 41, "fork": 57, "vfork": 58, "clone": 56, "clone3": 435}
        | {"sendto": 44, "sendmsg": 46, "sendmmsg": 307},
    ),
    "aarch64": (
        0xC00000B7,
        {"io_uring_setup": 425, "connect": 203, "socket": 198, "clone": 220, "clone3": 435}
        | {"sendto": 206, "sendmsg": 211, "sendmmsg": 269},
    ),
}
_PROCESSES = ("fork", "vfork")
# Landlock's rule for TCP does not see a connection that begins with its first data (MSG_FASTOPEN), io_uring sends
# without these calls, and other protocols, such as MPTCP, reach listeners of TCP.
_FLAGS_PLACES, _FAST_OPEN = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}, 0x20000000
_UNIX, _IPV4, _IPV6, _NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _TYPE_BITS = 1, 2, 0xF
_PROTOCOLS = (0, 6, 17)  # that of the type, TCP, UDP
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER, _JUMP_IF_SET, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06  # of BPF
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _ARGUMENT_SIZE = 0, 4, 16, 8  # places in struct seccomp_data
_REFUSE, _ALLOW = 0x00050000, 0x7FFF0000  # an errno is added to the first
_X32_BIT = 0x3FFFFFFF
_CLONE_THREAD = 0x10000
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
# Ports: of an address, and of each lent device in the JSON of a layout.
_AT_END, _IN_LAYOUT = re.compile(r".*:([0-9]{1,5})"), re.compile(r'"rpc_?[aA]ddress"\s*:\s*"[^"]*:([0-9]{1,5})"')
_CUDA_CACHE = "~/.nv/ComputeCache"
_USABLE = os.R_OK | os.W_OK


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has; 0: none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))))


def has_filters() -> bool:
    """Return True if the kernel takes a seccomp filter on this processor. It reads the given one first: EFAULT."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    library = ctypes.CDLL(None, use_errno=True)
    return library.prctl(_SET_SECCOMP, _SECCOMP_FILTER, None) != 0 and ctypes.get_errno() == errno.EFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a runner. 0: none."""

    cpu_s: int = 0
    open_files: int = 0
    memory_bytes: int = 0  # of addresses, beside those that it has and those of its files, which it may map
    opens_devices: bool = True  # drivers of GPUs reserve more addresses than there is memory, and may start programs
    starts_processes: bool = False


def confine(arguments: Sequence[str], limits: Limits) -> None:
    """Confine this process to what its command line names: files to read, the folder of a socket, lent devices."""
    forbid_core_files()
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    own = tuple(readable(arguments))
    has_gpus, ports = any(_nodes(_CARDS)), collector_ports() | lent_ports(arguments)
    if OWN_USER in arguments and _become_own_user(library, own, tuple(_socket_folders(arguments))):
        _lower(resource.RLIMIT_NPROC, _TASKS_MAX + _TASKS_PER_CORE * (os.cpu_count() or 1))
    _limit_use(limits, arguments, limits_memory=not (limits.opens_devices and has_gpus))
    _enter(library, own)
    _forbid_calls(
        library,
        () if ports or has_gpus else ("connect",),
        processes=limits.starts_processes or has_gpus or (limits.opens_devices and any(_nodes(("dri",)))),
        unix_sockets=has_gpus or any(_socket_folders(arguments)),
    )
    files = (
        (own, _READ | _READ_FOLDER | _EXECUTE),
        (chain(_nodes(_DEVICES), [Path("/proc/self")]), _READ | _READ_FOLDER | _WRITE | _IOCTL),
        # A folder in the place of a file is named as such by the error of its opening.
        ((Path(text) for text in arguments if os.path.isdir(text)), _READ_FOLDER),  # noqa: PTH112  # takes any text
        (_socket_folders(arguments), _MAKE_SOCKET),
        (_caches(), _RIGHTS_LATEST),
    )
    _restrict(library, files, ports)


def confine_worker(*, reads_libraries: bool = True) -> None:
    """Confine this process, which only computes, to its open files and, unless all is imported, Python's modules."""
    forbid_core_files()
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    files = tuple(readable(())) if reads_libraries else ()
    _enter(library, files)
    _forbid_calls(library, ("connect", "socket"))
    _restrict(library, ((files, _READ | _READ_FOLDER),))


def forbid_core_files() -> None:
    """Leave no core file, which would hold prompts. A limit of 1 is that which programs in `core_pattern` obey, too."""
    _lower(resource.RLIMIT_CORE, 1)


def _limit_use(limits: Limits, arguments: Sequence[str], *, limits_memory: bool) -> None:
    if limits.cpu_s:
        _lower(resource.RLIMIT_CPU, limits.cpu_s)
    if limits.open_files:
        _lower(resource.RLIMIT_NOFILE, limits.open_files)
    if limits.memory_bytes and limits_memory:
        used_pages = int(Path("/proc/self/statm").read_text().split()[0])
        files_bytes = sum(map(os.path.getsize, _files_of(arguments)))
        _lower(resource.RLIMIT_AS, used_pages * resource.getpagesize() + limits.memory_bytes + files_bytes)


def _lower(kind: int, most: int) -> None:
    """Set a limit for good; one that is lower already stays."""
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _become_own_user(library: ctypes.CDLL, files: Sequence[Path], folders: Iterable[Path]) -> bool:
    """Become a user that no other process is, and own the folders of its sockets. The host has all of `SEPARATION`.

    False: it stays root, because a file or a device would be out of reach, as with FUSE.
    """
    user, groups = RUNNER_USERS[os.getpid()], os.getgroups()
    reached = [path for path in files if not _is_refused(path)]
    nodes = [node for node in _nodes((*_CARDS, "dri/*")) if node.is_char_device() and os.access(node, _USABLE)]
    # Drivers give devices to a group, of which root need not be a member.
    os.setgroups(sorted({node.stat().st_gid for node in nodes} - {0}))
    os.setegid(user)
    os.seteuid(user)
    _hold(library, effective=_READ_ANY, permitted=sum(1 << number for number in SEPARATION.values()))
    fits = not any(map(_is_refused, reached)) and all(os.access(node, _USABLE, effective_ids=True) for node in nodes)
    os.seteuid(0)
    os.setegid(0)
    if not fits:
        os.setgroups(groups)
        return False
    for folder in folders:
        os.chown(folder, user, user)
    library.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)  # until `_enter`
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    library.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # its own files in /proc belong to it, as before
    return True


def _enter(library: ctypes.CDLL, files: Iterable[Path]) -> None:
    """Give up privileges for good. One of root keeps the capability to read files of other users if it has to."""
    library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    may_read = _hold(library, permitted=_READ_ANY)
    if may_read and any(map(_is_refused, files)):
        _hold(library, effective=_READ_ANY, permitted=_READ_ANY, inheritable=_READ_ANY)
        if os.geteuid():  # a program that it starts, too: the decoder of images
            library.prctl(_AMBIENT, _RAISE, _DAC_READ_SEARCH, 0, 0)
    else:
        _hold(library)


def _hold(library: ctypes.CDLL, *, effective: int = 0, permitted: int = 0, inheritable: int = 0) -> bool:
    """Hold these capabilities and no others; False: one of them was not held."""
    return not library.capset(_CAPABILITIES, struct.pack("=6I", effective, permitted, inheritable, 0, 0, 0))


def _is_refused(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _restrict(library: ctypes.CDLL, files: Iterable[tuple[Iterable[Path], int]], ports: Iterable[int] = ()) -> None:
    """Take away all rights to files but these, and TCP connections but to these ports."""
    version = landlock_version()
    if not version:
        return
    rights = _RIGHTS.get(version, _RIGHTS_LATEST)
    network = _CONNECT_TCP if version >= NETWORK_VERSION else 0
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


# Code, where to go on if true and if not (an end, or a number of steps to skip), and the number that is meant.
_Step = tuple[int, str | int, str | int, int]


def _forbid_calls(
    library: ctypes.CDLL, names: Collection[str], *, processes: bool = False, unix_sockets: bool = False
) -> None:
    """Refuse calls, and unless it may start `processes` those that start one; threads may begin.

    Landlock lets Unix sockets through. Drivers of GPUs connect, and start programs.
    """
    if os.uname().machine not in _MACHINES:
        return
    machine, numbers = _MACHINES[os.uname().machine]
    refused = (*names, "io_uring_setup", *(() if processes else _PROCESSES))
    steps: list[_Step] = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_IF_EQUAL, 0, "refuse", machine),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_GREATER, "refuse", 0, _X32_BIT),
        *((_JUMP_IF_EQUAL, "refuse", 0, numbers[name]) for name in refused if name in numbers),
        *_of_call(numbers["socket"], _socket_steps(unix_sockets=unix_sockets, datagrams="connect" not in names)),
    ]
    for name, place in _FLAGS_PLACES.items():
        steps += _of_call(numbers[name], [_argument(place), (_JUMP_IF_SET, "refuse", "allow", _FAST_OPEN)])
    if not processes:
        steps += [
            (_JUMP_IF_EQUAL, "unknown", 0, numbers["clone3"]),  # flags unseen; libraries then use `clone`
            *_of_call(numbers["clone"], [_argument(0), (_JUMP_IF_SET, "allow", "refuse", _CLONE_THREAD)]),
        ]
    ends = {"allow": _ALLOW, "refuse": _REFUSE | errno.EACCES, "unknown": _REFUSE | errno.ENOSYS}
    places = {name: len(steps) + place for place, name in enumerate(ends)}
    program = b"".join(
        struct.pack("=HBBI", code, *(places[end] - place - 1 if isinstance(end, str) else end for end in ways), number)
        for place, (code, *ways, number) in enumerate(steps)
    ) + b"".join(struct.pack("=HBBI", _RETURN, 0, 0, end) for end in ends.values())
    content = ctypes.create_string_buffer(program, len(program))
    library.prctl(_SET_SECCOMP, _SECCOMP_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(content)))


def _of_call(number: int, steps: Sequence[_Step]) -> list[_Step]:
    """Return steps that one call alone goes through; each way through them has an end."""
    return [(_JUMP_IF_EQUAL, 0, len(steps), number), *steps]


def _argument(place: int) -> _Step:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + place * _ARGUMENT_SIZE)


def _socket_steps(*, unix_sockets: bool, datagrams: bool) -> list[_Step]:
    """Allow TCP, what libraries ask of the kernel (netlink), and `datagrams`, with which names are resolved."""
    return [
        _argument(0),
        (_JUMP_IF_EQUAL, "allow" if unix_sockets else "refuse", 0, _UNIX),
        (_JUMP_IF_EQUAL, "allow", 0, _NETLINK),
        (_JUMP_IF_EQUAL, 1, 0, _IPV4),
        (_JUMP_IF_EQUAL, 0, "refuse", _IPV6),
        _argument(1),
        (_AND, 0, 0, _TYPE_BITS),
        (_JUMP_IF_EQUAL, 1, 0, _STREAM),
        (_JUMP_IF_EQUAL, 0, "refuse", _DATAGRAM if datagrams else _STREAM),
        _argument(2),
        *((_JUMP_IF_EQUAL, "allow", 0, protocol) for protocol in _PROTOCOLS),
        (_JUMP_IF_EQUAL, "refuse", "refuse", 0),
    ]


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
    system = (*_LIBRARIES, *(f"/etc/{name}" for name in _CONFIGURATION), *(f"/proc/{name}" for name in _PROC))
    shared = (f"/usr/share/{name}" for name in _SHARED)
    programs = (path for path in Path("/usr").glob("*") if path.name != "share")
    vendors = chain.from_iterable(Path("/opt").glob(name) for name in _VENDORS)
    return chain(
        programs, vendors, (Path(text) for text in chain(system, shared, code, libraries, _files_of(arguments)))
    )


def _files_of(arguments: Iterable[str]) -> Iterator[str]:
    words = tuple(arguments)
    named = (text.rpartition("=")[0] for text in words)  # --adapter PATH=SCALE
    return (text for text in chain(words, named) if os.path.isfile(text))  # noqa: PTH113  # takes any text


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


def lent_ports(arguments: Sequence[str]) -> frozenset[int]:
    """Return the ports of lent devices, from the values of `--rpc` and `--layout`."""
    named = map(_AT_END.fullmatch, _values(arguments, "--rpc"))
    in_layouts = chain.from_iterable(map(_IN_LAYOUT.finditer, _values(arguments, "--layout")))
    return frozenset(int(found[1]) for found in chain(named, in_layouts) if found is not None)


def _values(arguments: Sequence[str], option: str) -> Iterator[str]:
    for word, next_word in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, separator, value = word.partition("=")
        if name == option:
            yield value if separator else next_word


def _nodes(names: Iterable[str]) -> Iterator[Path]:
    return chain.from_iterable(Path("/dev").glob(name) for name in names)

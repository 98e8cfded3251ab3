"""Hostile backend module: a real shared object that the engine of a confined runner loads; it makes raw system calls.

A model file that takes a runner over has this much: native code in the process, after it was confined. The engine's own
loader of backends opens the object, whose constructor tries everything once, prints a line for each attempt, and ends
the process.
"""

import errno
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.integration.runner.test_sandbox import SIGNALS, UNLIMITED

NAME = "evil_backend.so"
INPUT = "raw calls: open, unlink, connect, sendto, kill, ptrace, process_vm_readv, pidfd_getfd, clone, io_uring, execve"
# Not EFAULT, which comes after the check of rights: the address is not mapped there.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.ENOSYS, errno.EROFS})
_PROCESS, _PROGRAM = "process", "start a program of the node"

SOURCE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ptrace.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum kind { READ, WRITE, CREATE, REMOVE, TCP, FAST_OPEN, MPTCP, DATAGRAM, UNIX, SIGNAL, PIDFD_SIGNAL, DESCRIPTOR, TRACE,
            READ_MEMORY, WRITE_MEMORY, PROCESS, URING, PROGRAM };
static const struct { const char *name; enum kind kind; const char *text; long number; } attempts[] = {
%s
};

static long opened(const char *path, int flags) {
    return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NONBLOCK, 0600);
}

static long connected(const char *host, long port, int type, int protocol, int flags) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval most = {.tv_sec = 5};
    inet_pton(AF_INET, host, &to.sin_addr);
    long fd = syscall(SYS_socket, AF_INET, type, protocol);
    if (fd < 0) return fd;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (flags < 0) return syscall(SYS_connect, fd, &to, sizeof to);
    return syscall(SYS_sendto, fd, "x", 1, flags, &to, sizeof to);
}

static long connected_unix(const char *path) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    long fd = syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0);
    return fd < 0 ? fd : syscall(SYS_connect, fd, &to, sizeof to);
}

static long moved(long call, long pid) {
    char content[8];
    struct iovec piece = {content, sizeof content};
    return syscall(call, pid, &piece, 1, &piece, 1, 0);
}

static long forked(void) {
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!pid) _exit(0);
    return pid;
}

static long attempt(enum kind kind, const char *text, long number) {
    char parameters[120] = {0};
    char *words[] = {"sh", "-c", "exit 0", 0}, *none[] = {0};
    switch (kind) {
    case READ: return opened(text, O_RDONLY);
    case WRITE: return opened(text, O_WRONLY);
    case CREATE: return opened(text, O_WRONLY | O_CREAT | O_EXCL);
    case REMOVE: return syscall(SYS_unlinkat, AT_FDCWD, text, 0);
    case TCP: return connected(text, number, SOCK_STREAM, 0, -1);
    case FAST_OPEN: return connected(text, number, SOCK_STREAM, 0, MSG_FASTOPEN);
    case MPTCP: return connected(text, number, SOCK_STREAM, 262, -1);
    case DATAGRAM: return connected(text, number, SOCK_DGRAM, 0, 0);
    case UNIX: return connected_unix(text);
    case SIGNAL: return syscall(SYS_kill, number, 0);
    case PIDFD_SIGNAL: return syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, number, 0), 0, 0, 0);
    case DESCRIPTOR: return syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, number, 0), 0, 0);
    case TRACE: return syscall(SYS_ptrace, PTRACE_SEIZE, number, 0, 0);
    case READ_MEMORY: return moved(SYS_process_vm_readv, number);
    case WRITE_MEMORY: return moved(SYS_process_vm_writev, number);
    case PROCESS: return forked();
    case URING: return syscall(SYS_io_uring_setup, 4, parameters);
    case PROGRAM: return syscall(SYS_execve, text, words, none);
    }
    return -1;
}

__attribute__((constructor)) static void attack(void) {
    for (unsigned n = 0; n < sizeof attempts / sizeof *attempts; n++) {
        long number = attempts[n].number ? attempts[n].number : getppid();
        if (attempts[n].kind == PROGRAM) dprintf(2, "\nSHARED 0 %%s\n", attempts[n].name);
        errno = 0;
        long ended = attempt(attempts[n].kind, attempts[n].text, number);
        dprintf(2, "\nSHARED %%d %%s\n", ended < 0 ? errno : 0, attempts[n].name);
    }
    syscall(SYS_exit_group, 0);
}
"""

# Runs in the process when the mode's own modules are imported, which is after it was confined.
LOADER = """
import os, sys
PATH = {path!r}

def load():
    import llama_cpp
    llama_cpp.llama_cpp._lib.ggml_backend_load(PATH.encode())
    os._exit(1)

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name in ("runner.inspect", "runner.measure", "runner.probe", "runner.serve.app", "runner.rpc"):
            sys.meta_path.remove(self)
            load()

sys.meta_path.insert(0, Trap())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Targets of the code. `program`: a file of the node that could be started; `neighbour` 0: the parent process."""

    secrets: Mapping[str, str]
    code: Mapping[str, str]  # files of the runner's own program, which a later start would run
    own: str
    new: str
    connects: Mapping[str, tuple[str, int]]
    unix: str
    program: str
    neighbour: int = 0

    def attempts(self) -> Iterable[tuple[str, str, str, int]]:
        """Yield the name of each attempt, its kind, and what it is about."""
        for name, path in self.secrets.items():
            yield f"read {name}", "READ", path, 0
            yield f"remove {name}", "REMOVE", path, 0
        for name, path in self.code.items():
            yield f"write {name}", "WRITE", path, 0
        yield "overwrite", "WRITE", self.own, 0
        yield "write", "CREATE", self.new, 0
        for name, (host, port) in self.connects.items():
            for how in ("TCP", "FAST_OPEN", "MPTCP", "DATAGRAM"):
                yield f"connect to {name} by {how.lower()}", how, host, port
        yield "unix", "UNIX", self.unix, 0
        yield "signal", "SIGNAL", "", 0
        for name, kind in (
            ("signal", "SIGNAL"),
            ("signal by pidfd", "PIDFD_SIGNAL"),
            ("descriptor", "DESCRIPTOR"),
            ("read memory", "READ_MEMORY"),
            ("write memory", "WRITE_MEMORY"),
            ("trace", "TRACE"),
        ):
            yield f"neighbour: {name}", kind, "", self.neighbour
        yield _PROCESS, "PROCESS", "", 0
        yield "io_uring", "URING", "", 0
        yield _PROGRAM, "PROGRAM", self.program, 0  # the last one: it is over if it succeeds


def build(path: Path, targets: Targets) -> Path:
    """Compile the object for its targets; return its path."""
    rows = ",\n".join(
        f"{{{json.dumps(name)}, {kind}, {json.dumps(text)}, {number}}}"
        for name, kind, text, number in targets.attempts()
    )
    source = path.with_suffix(".c")
    source.write_text(SOURCE % rows)
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def results_in(output: str) -> dict[str, int]:
    """Return the error number of each attempt, 0 where it succeeded, as the object printed it."""
    lines = (line.split(" ", 2) for line in output.splitlines() if line.startswith("SHARED "))
    return {name: int(number) for _, number, name in lines}


def refused(found: Mapping[str, int]) -> list[str]:
    """Return the attempts that were refused; without confinement there is none, but for io_uring where it is off."""
    return [name for name, number in found.items() if number in _REFUSED and name != "io_uring"]


def reached(found: Mapping[str, int], mode: str, *, landlock: int) -> list[str]:
    """Return the attempts that were not refused, though a mode is to refuse them."""
    allowed = (UNLIMITED.get(mode, set()) & {_PROCESS}) | (frozenset() if landlock >= 6 else SIGNALS)
    if "--rpc" in mode:  # it may resolve names
        allowed |= {name for name in found if name.endswith("datagram")}
    return [name for name, number in found.items() if number not in _REFUSED and name not in allowed]

"""`python -m cli.child PARENT_PID -- COMMAND…`: become COMMAND, and get SIGTERM when the parent dies.

The kernel clears the setting at fork and keeps it over exec, so it must be made in the child itself, before exec; a
`preexec_fn` would run Python between fork and exec of a process that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Arm the signal, then exec; returns only if that is impossible."""
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        print("usage: python -m cli.child PARENT_PID -- COMMAND...", file=sys.stderr)
        return 2
    parent_pid, command = int(sys.argv[1]), sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        print(f"prctl: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    # A parent that died before the call above sends no signal any more; then another process is the parent by now.
    if os.getppid() != parent_pid:
        return 1
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())

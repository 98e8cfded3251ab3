"""The `puna` command. Imports nothing before it looks for Ctrl-C: what a command brings takes a moment to load."""

import os
import sys

# Services are forked from a process that has imported grpc, which reads this then: its fork handlers are for children
# that go on using gRPC. It begins to use it after the fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# ExitCode.INTERRUPTED, which is an import itself.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    try:
        from cli.command_line import run  # noqa: PLC0415  # see above

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()

"""The `puna` command. Imports nothing before it looks for Ctrl-C: what a command brings takes a moment to load."""

import sys

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

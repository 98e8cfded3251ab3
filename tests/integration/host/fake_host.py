"""A host whose engine lists the cards of the scenario in SCENARIO (see fake_engine.py); all else is real."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.host.processes import children

SCENARIO = "FAKE_SCENARIO"


def main() -> int:
    """Run the host with every child behind the scenario."""
    scenario, script = os.environ.pop(SCENARIO), Path(__file__).with_name("fake_engine.py")

    def runner_command(mode: str, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, str(script), scenario, mode, *arguments]

    children.runner_command = runner_command
    from runner.__main__ import main as runner_main  # after the change, so that every part takes it

    return runner_main()


if __name__ == "__main__":
    sys.exit(main())

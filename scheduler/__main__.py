"""`python -m scheduler`."""

import sys

from common.service import run_service
from scheduler.app import serve
from scheduler.settings import SchedulerSettings


def main() -> int:
    """Run the scheduler until a signal; 0 after an orderly stop, 1 if it cannot start."""
    return run_service("scheduler", SchedulerSettings, serve)


if __name__ == "__main__":
    sys.exit(main())

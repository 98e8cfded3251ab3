"""`python -m scheduler`."""

import sys

import common.telemetry.quick_start  # noqa: F401
from common.service import run_service
from scheduler.app import serve
from scheduler.settings import SchedulerSettings

if __name__ == "__main__":
    sys.exit(run_service("scheduler", SchedulerSettings, serve))

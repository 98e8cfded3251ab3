"""`python -m discovery`."""

import sys

from common.service import run_service
from discovery.app import serve
from discovery.settings import DiscoverySettings


def main() -> int:
    """Run discovery until a signal; 0 after an orderly stop, 1 if it cannot start."""
    return run_service("discovery", DiscoverySettings, serve)


if __name__ == "__main__":
    sys.exit(main())

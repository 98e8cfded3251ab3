"""`python -m tools.clients.lock NAME…`: pin the newest versions of clients that run here.

Locks of npm have no addresses. Locks of pip have the hashes of the files that pip chose for this machine's Python.
"""

import argparse

from tools.clients.catalogue import CLIENTS
from tools.clients.packages import ROOT

SETS = {client.packages.name: client.packages for client in CLIENTS}


def main() -> None:
    """Write the locks of the named sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(SETS))
    for name in parser.parse_args().names:
        SETS[name].lock()
        print(f"{name}: {', '.join(str(path.relative_to(ROOT)) for path in SETS[name].lock_files)}", flush=True)


if __name__ == "__main__":
    main()

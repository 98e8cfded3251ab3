"""Write deploy/grafana/dashboards; with `--check` only report whether the files are up to date."""

import sys

from tools.dashboards.boards import BOARDS
from tools.dashboards.grafana import DIRECTORY, to_json
from tools.generated import write_or_check

if __name__ == "__main__":
    wanted = {DIRECTORY / f"{board.uid}.json": to_json(board) for board in BOARDS}
    sys.exit(write_or_check(wanted, sys.argv[1:], tool="dashboards"))

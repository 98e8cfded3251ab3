"""Write deploy/grafana/dashboards; with `--check` only say whether the files are up to date."""

import sys

from tools.dashboards.boards import BOARDS
from tools.dashboards.grafana import DIRECTORY, to_json

if __name__ == "__main__":
    stale = False
    for board in BOARDS:
        path, text = DIRECTORY / f"{board.uid}.json", to_json(board)
        stale = stale or not path.exists() or path.read_text(encoding="utf-8") != text
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    sys.exit(int(stale and "--check" in sys.argv))

"""Leaves rich out of a process that draws nothing; imported before anything that logs.

structlog and httpx import it where it is installed, in 0.3 s of processor time of each start.
"""

import sys

sys.modules.setdefault("rich", None)  # type: ignore[arg-type]

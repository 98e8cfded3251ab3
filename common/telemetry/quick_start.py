"""Makes a process start quickly; imported before anything that takes long.

structlog and httpx import rich where it is installed, in 0.3 s of processor time, and nothing here draws. Imports make
a hundred thousand objects that stay, and Python would look through them for garbage again and again: a sixth of the
time of the gateway's imports. `run_service` and `python -m runner` turn that on once all is imported.
"""

import gc
import sys

sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
gc.disable()

"""The name of a thread as the system shows it."""

import contextlib
import threading
from pathlib import Path

ENGINE_THREAD = "engine"


def name_engine_thread() -> None:
    """Name this thread, and every compute thread that it will make: `top -H` tells them from the event loop's."""
    with contextlib.suppress(OSError):  # not on Linux
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(ENGINE_THREAD, encoding="ascii")

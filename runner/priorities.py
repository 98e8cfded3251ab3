"""Threads that leave the processors to those that compute."""

import os
import sys
import threading

# Such threads give way to answers, but not for long: for moments they hold the interpreter's lock.
NICENESS = 10


def give_way() -> None:
    """Lower the priority of the calling thread; nothing where a thread has none of its own."""
    if sys.platform == "linux":
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + NICENESS)

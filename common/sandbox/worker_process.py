"""Process of a worker: frames in and out, within limits and confined.

Frames both ways: 4 bytes length, big-endian, then the content. The process imports little and gets no environment, so
that it starts quickly and holds nothing worth stealing.
"""

import resource
import signal
import struct
import sys
from collections.abc import Callable

from common.sandbox.confinement import confine_worker

HEADER = struct.Struct(">I")
OPEN_FILES_MAX = 32


def serve_frames(answer: Callable[[bytes], bytes], *, cpu_s_max: float, memory_bytes_max: int) -> None:
    """Confine this process and answer frames until the input ends; each has so much CPU time."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_MAX, OPEN_FILES_MAX))
    # The service stops its workers itself; a Ctrl-C in the terminal is not for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The default action of SIGPROF ends the process, also inside a C function that never returns to Python.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    confine_worker()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        while len(header := source.read(HEADER.size)) == HEADER.size:
            content = source.read(*HEADER.unpack(header))
            signal.setitimer(signal.ITIMER_PROF, cpu_s_max)
            answered = answer(content)
            signal.setitimer(signal.ITIMER_PROF, 0)
            sink.write(HEADER.pack(len(answered)) + answered)
            sink.flush()
    except MemoryError:
        # The traceback says nothing that the end of the pipe does not.
        sys.exit(1)

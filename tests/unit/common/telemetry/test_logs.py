"""The log lines of a failure, and lines that cannot be written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.full_disk import small_disk
from tests.waiting import wait_until

PROGRAM = """
from common.telemetry.logs import configure_logs, get_logger
configure_logs(service="test")
def answer(prompt):
    raise RuntimeError("it broke")
try:
    answer("my secret prompt" + "".join([]))
except RuntimeError:
    get_logger().exception("answer.bug")
"""


def test_an_exception_is_logged_with_its_frames_and_without_what_variables_held() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    row = json.loads(done.stderr)
    assert row["event"] == "answer.bug"
    assert row["exception"][0]["exc_value"] == "it broke"
    assert [frame["name"] for frame in row["exception"][0]["frames"]][-1] == "answer"
    assert "locals" not in row["exception"][0]["frames"][-1]


# Logs a line for each line of its standard input, and answers how many lines it has dropped so far.
TALKATIVE = """
import sys
from common.telemetry.logs import configure_logs, get_logger
from common.telemetry.metrics import LOG_LINES_DROPPED
configure_logs(service="test")
for line in sys.stdin:
    get_logger().info("it.happened", text=line[0] * int(line[1:]))
    print(int(LOG_LINES_DROPPED.collect()[0].samples[0].value), flush=True)
"""


@contextmanager
def talkative(stderr: int | IO[bytes]) -> Iterator[tuple["subprocess.Popen[str]", Callable[[str], int]]]:
    """A process that logs, and how to make it log: the answer is the number of lines dropped until then."""
    process = subprocess.Popen(
        [sys.executable, "-c", TALKATIVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def say(line: str) -> int:
        asked.write(f"{line}\n")
        asked.flush()
        return int(answers.readline())

    try:
        yield process, say
    finally:
        process.kill()
        process.wait()
        answers.close()
        with suppress(BrokenPipeError):  # a question that was not read
            asked.close()


def written(log: Path) -> Iterator[str]:
    """The first letter of each text in a log, and `dropped` for a number of lines that were not written."""
    for line in log.read_text().splitlines():
        if line.endswith("}"):
            row = json.loads(line)
            if row["event"] == "it.happened":
                yield row["text"][0]
            elif row["event"] == "log.lines_dropped" and row["lines"] > 0:
                yield "dropped"


def test_a_pipe_that_is_not_read_costs_log_lines_only_and_delays_the_end_by_a_second() -> None:
    read, write = os.pipe()
    with talkative(write) as (process, say):
        os.close(write)
        dropped = [say("a100000") for _ in range(100)]
        assert dropped[0] == 0
        assert 0 < dropped[-1] < 100  # the queue is bounded, and it is used
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait(30) == 0
    os.close(read)


def test_lines_are_dropped_while_the_disk_is_full_and_written_again_once_it_is_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        log = disk.path / "log"
        with log.open("wb") as file, talkative(file) as (_, say):
            say("a10")
            wait_until(lambda: log.stat().st_size > 0, deadline_s=60, what="the line is written")  # by a thread
            disk.fill()
            wait_until(lambda: say("b10000") > 0, deadline_s=60, what="a line was dropped")
            disk.free()
            wait_until(
                lambda: say("c10") > 0 and {"a", "c", "dropped"} <= set(written(log)), deadline_s=60, what="healed"
            )

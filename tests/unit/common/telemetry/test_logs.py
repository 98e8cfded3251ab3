"""The log lines of a failure."""

import json
import subprocess
import sys

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

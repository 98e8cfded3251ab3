"""The bars that are run here, and where the others are shown."""

from tests.faults.bars.crash_points import CRASH_POINTS
from tests.faults.bars.disconnects import DISCONNECTS
from tests.faults.bars.leader_kills import LEADER_KILLS
from tests.faults.bars.overload import OVERLOAD
from tests.faults.bars.partitions import PARTITIONS
from tests.faults.bars.redis_gone import REDIS_GONE
from tests.faults.bars.rolling import ROLLING
from tests.faults.bars.runner_kills import RUNNER_KILLS

BARS = (RUNNER_KILLS, LEADER_KILLS, REDIS_GONE, CRASH_POINTS, PARTITIONS, DISCONNECTS, OVERLOAD, ROLLING)

# By number: the test that shows the bar, or why none does.
ELSEWHERE = {
    2: "tests/faults/test_runner_hang.py, one busy and one idle runner",
    3: "tests/faults/test_runner_kill.py: a runner is the engine's process, its host stays alive",
    5: "tests/integration/scheduler/test_leadership.py and the simulation; 200 stopped leaders are not run",
    7: "tests/integration/scheduler/test_leadership.py (empty Redis), test_sentinel.py (failover)",
    11: "tests/integration/gateway/test_gateway_overload.py; 500 connections at once are not run",
    14: "tests/integration/host/test_host_restart.py, tests/e2e/test_nodes.py",
    15: "make fuzz",
    16: "tests/badinput",
    17: "tests/integration/host/test_hostile_headers.py, tests/e2e/test_bad_input.py",
    18: "tests/attack, make attack",
    19: "tests/authz",
    20: "tests/e2e/test_posture.py; the soak of two hours is not run",
}

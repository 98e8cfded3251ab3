"""The bars of reliability, by number."""

from tests.faults.bars.crash_points import CRASH_POINTS
from tests.faults.bars.disconnects import DISCONNECTS
from tests.faults.bars.leader_kills import LEADER_KILLS
from tests.faults.bars.nodes import NODE_FAULTS
from tests.faults.bars.overload import OVERLOAD
from tests.faults.bars.partitions import PARTITIONS
from tests.faults.bars.redis_amnesia import REDIS_AMNESIA
from tests.faults.bars.redis_gone import REDIS_GONE
from tests.faults.bars.rolling import ROLLING
from tests.faults.bars.runner_hangs import RUNNER_HANGS
from tests.faults.bars.runner_kills import CHILD_DIES, RUNNER_KILLS
from tests.faults.bars.slow_clients import SLOW_CLIENTS
from tests.faults.bars.soak import SOAK
from tests.faults.bars.suites import AUTHORITY, BAD_INPUT, EGRESS, FUZZED, HOSTILE_MODELS
from tests.faults.bars.zombie_leaders import ZOMBIE_LEADERS

BARS = (
    RUNNER_KILLS,
    RUNNER_HANGS,
    CHILD_DIES,
    LEADER_KILLS,
    ZOMBIE_LEADERS,
    REDIS_GONE,
    REDIS_AMNESIA,
    CRASH_POINTS,
    PARTITIONS,
    DISCONNECTS,
    SLOW_CLIENTS,
    OVERLOAD,
    ROLLING,
    NODE_FAULTS,
    FUZZED,
    BAD_INPUT,
    HOSTILE_MODELS,
    EGRESS,
    AUTHORITY,
    SOAK,
)

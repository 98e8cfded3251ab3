"""Three hours of 1,000 nodes with 8 devices each: real core, virtual time, engines that hide their graphs, faults.

Models lie on one device, on several of a node, over nodes joined by RPC, partly in host RAM. Every invariant is checked
after every event. Everything follows from the seed, which every failure names.
"""

import pytest

from tests.simulation.scale import ARRIVALS_PER_S, Scale

HOURS = 3
CRASHED_MEASUREMENTS_MIN = 20
HAPPENS = (
    "host refused", "hog struck", "hog came", "figures stood still", "measurement crashed", "runner died", "node lost",
    "joined by RPC", "drained", "replica.lost", "model.evicted",
)  # fmt: skip


@pytest.mark.behaviour("B-72", "B-133")
@pytest.mark.timeout(600)
def test_hours_of_a_thousand_nodes_over_commit_nothing_and_answer_everybody_once() -> None:
    scale = Scale(seed=11, nodes=1000)
    scale.run(HOURS * 3600)
    asked = len(scale.world.asked)
    assert asked > HOURS * 3600 * ARRIVALS_PER_S * 0.8
    assert scale.served > asked * 0.9
    assert scale.shapes[1] > 10
    assert sum(count for devices, count in scale.shapes.items() if devices > 1) > 10
    missing = [one for one in HAPPENS if not scale.happened[one]]
    assert not missing, scale.happened
    assert scale.happened["measurement crashed"] >= CRASHED_MEASUREMENTS_MIN, scale.happened
    invariants = scale.world.invariants
    assert invariants is not None
    assert invariants.checked == scale.world.events
    assert invariants.from_nothing > 50


def test_the_same_seed_tells_the_same_story() -> None:
    stories = []
    for _ in range(2):
        scale = Scale(seed=5, nodes=40)
        scale.run(900)
        stories.append((scale.world.events, dict(scale.happened), dict(scale.world.store)))
    assert stories[0] == stories[1]

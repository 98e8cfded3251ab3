"""A seeded sample of `tests.faults.every_token`: answers of every kind stay equal when their replica is lost."""

import random
from pathlib import Path

import pytest

from tests.faults.dialects import LANES
from tests.faults.every_token import FAULTS, running_rig

SEED = 15
LANES_SAMPLED = 12
ROUNDS_MAX = 3  # an answer that was over before the fault proves nothing


@pytest.mark.timeout(900)
@pytest.mark.behaviour("B-140")
async def test_answers_of_the_real_engine_are_the_same_whatever_breaks_after_any_token(tmp_path: Path) -> None:
    async with running_rig(tmp_path, seed=SEED) as rig:
        await rig.measure(random.Random(SEED).sample(LANES, LANES_SAMPLED))
        for fault in FAULTS:
            tally = rig.tallies[fault]
            while not tally.lost and tally.rounds < ROUNDS_MAX:
                await rig.run_round(fault, rig.choose(fault))
            print(f"{fault}: {tally.lost} of {tally.answers} answers lost their replica in {tally.rounds} rounds")
            assert (tally.wrong, tally.lost > 0) == ([], True), fault

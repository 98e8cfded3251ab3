"""Parked prompts against computing them again, by measured speeds."""

from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.sequence.batching import UNKNOWN_COST, CallCost
from runner.core.sequence.slots import SharedCells
from runner.core.states.gate import CopySpeed
from runner.engine.batched.checkpoint_store import CheckpointStore
from runner.engine.batched.parking import WORTH_TOKENS_MIN, ParkingLot, SlotContent
from runner.engine.contract.engine import Freed
from tests.unit.runner.simulated_context import SimulatedContext, Simulation
from tests.unit.runner.state_bytes import state_of


@pytest.mark.parametrize(
    ("cost", "worth"),
    [(CallCost(token_s=0.02), 50), (CallCost(token_s=0.1), WORTH_TOKENS_MIN), (UNKNOWN_COST, WORTH_TOKENS_MIN)],
    ids=["computing is fast", "computing is slow", "not measured"],
)
def test_a_prefix_is_brought_back_from_where_computing_it_takes_longer(cost: CallCost, worth: int) -> None:
    context: Any = SimulatedContext(cells=256, slots=1, batch_tokens=256)
    context._held[0] = {position: position for position in range(100)}
    copies = CopySpeed()
    lot = ParkingLot(
        context,
        CheckpointStore(context, bytes_max=0),
        copies,
        lambda: cost,
        bytes_max=2**20,
        recurrent=False,
        shared=SharedCells(),
    )
    assert lot.park(0, SlotContent([1] * 100, sequence_id=1))
    copies.bytes_per_s = state_of(range(100)).size  # the copy takes a second
    (view,) = lot.views()
    assert view.worth_tokens == worth
    assert lot.holders[0].restore_s == pytest.approx(1.0)


def test_a_prompt_is_parked_before_another_takes_its_slot() -> None:
    """Saves of states come before parking while nothing is computed, and the next prompt may come before both."""
    simulation = Simulation(slots=2, cells=4096, slot_tokens=2048, batch_tokens=512, copies_bytes_max=2**20)
    saving: Any = SimpleNamespace(
        work=lambda **_: True, awaits=lambda _: False, restored=lambda _: None, holds=lambda _: True, saving=False
    )
    simulation.loop.states = saving
    for tokens in (1, 2, 3, 1):
        count = 10 if tokens == 3 else 700
        simulation.submit([tokens] * count, max_tokens=2)
        for _ in range(6):
            simulation.turn()
    ends = [one for one in simulation.recorder.outcomes if isinstance(one, Freed)]
    assert [one.times.cached_tokens for one in ends if one.times] == [0, 0, 0, 699]

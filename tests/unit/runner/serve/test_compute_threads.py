"""Number of compute threads of a runner, and its changes."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from common.spec.layout import FlashAttention, Layout
from runner.core.threads.kernels import SPLIT_CELLS_MIN, lone_steps_round_by_threads
from runner.engine.contract.engine import LoadedModel
from runner.serve.compute_threads import ThreadSetting


class Engine:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def use_threads(self, count: int) -> None:
        self.told.append(count)


def loaded(*, asked: int = 0, threads: int = 4, most: int = 4) -> tuple[ThreadSetting, Engine]:
    engine: Any = Engine()
    made = ThreadSetting(engine, asked=asked)
    layout = Layout(threads=threads)
    made.loaded(
        LoadedModel(
            layout=layout,
            warnings=(),
            slot_context_tokens=1,
            weights_bytes=1,
            memory=None,
            threads_max=most,
        )
    )
    return made, engine


def test_only_what_changes_reaches_the_engine() -> None:
    threads, engine = loaded()

    assert (threads.now, threads.most) == (4, 4)
    assert [threads.use(count) for count in (4, 2, 2, 9)] == [4, 2, 2, 4]
    assert engine.told == [2, 4]


def test_a_number_that_somebody_asked_for_stays() -> None:
    threads, engine = loaded(asked=4)

    assert threads.use(1) == 4
    assert engine.told == []


def test_a_model_that_lies_on_devices_keeps_its_threads() -> None:
    threads, engine = loaded(most=0)

    assert threads.use(1) == 4
    assert engine.told == []


def test_no_threads_at_all_is_refused() -> None:
    threads, _ = loaded()

    with pytest.raises(InvalidRequest):
        threads.use(0)


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({}, True),
        ({"flash_attention": FlashAttention.AUTO}, True),
        ({"flash_attention": FlashAttention.OFF}, False),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, False),
    ],
)
def test_fused_attention_over_a_cache_in_half_precision_rounds_by_threads(
    changes: dict[str, Any], rounds: bool
) -> None:
    fields = {"flash_attention": FlashAttention.ON, "cache_type_k": "f16", "cache_type_v": "f16", **changes}
    layout = Layout(**fields)

    assert lone_steps_round_by_threads(layout, cells=SPLIT_CELLS_MIN) is rounds
    assert not lone_steps_round_by_threads(layout, cells=SPLIT_CELLS_MIN - 1)

"""The host's own look at free memory before it starts a runner."""

from hypothesis import given
from hypothesis import strategies as st

from runner.core.host.promises import MemoryNeed, OutstandingLoad, Shortfall, find_shortfall, outstanding_bytes

sizes = st.integers(0, 2**40)


def need(weights: int, later: int = 0, device: str = "gpu") -> MemoryNeed:
    return MemoryNeed(weights_bytes={device: weights}, later_bytes={device: later})


def test_what_fits_into_free_memory_is_started() -> None:
    assert find_shortfall(need(60, 40), free_bytes={"gpu": 100}, loading=[]) is None


def test_what_does_not_fit_names_device_and_bytes() -> None:
    assert find_shortfall(need(60, 41), free_bytes={"gpu": 100}, loading=[]) == Shortfall(
        device_id="gpu", needed_bytes=101, available_bytes=100
    )


def test_a_device_that_is_not_there_has_no_room() -> None:
    assert find_shortfall(need(1), free_bytes={"cpu": 100}, loading=[]) is not None


def test_what_a_loading_runner_will_still_take_is_not_free() -> None:
    loading = [OutstandingLoad(need=need(50, 10), fraction=0.0)]
    assert find_shortfall(need(50), free_bytes={"gpu": 100}, loading=loading) == Shortfall(
        device_id="gpu", needed_bytes=50, available_bytes=40
    )


def test_weights_that_are_already_loaded_count_once() -> None:
    assert outstanding_bytes([OutstandingLoad(need=need(50, 10), fraction=0.8)]) == {"gpu": 20}


@given(sizes, sizes, st.floats(0, 1), sizes, sizes)
def test_an_accepted_start_never_promises_more_than_is_free(
    weights: int, later: int, fraction: float, wanted: int, free: int
) -> None:
    loading = [OutstandingLoad(need=need(weights, later), fraction=fraction)]
    if find_shortfall(need(wanted), free_bytes={"gpu": free}, loading=loading) is None and wanted:
        assert wanted + outstanding_bytes(loading)["gpu"] <= free

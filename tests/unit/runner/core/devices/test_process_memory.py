"""Bytes of processes beside their models: samples of replicas, and loads that only the free bytes show."""

from runner.core.devices.process_memory import (
    LEAST_BYTES,
    MIB,
    MOST_BYTES,
    SAMPLES_KEPT,
    Arrivals,
    CardUse,
    learn,
    learned_bytes,
    restored,
)


def use(free_mib: int, **replicas: int | None) -> CardUse:
    return CardUse(
        free_bytes=free_mib * MIB,
        replicas={name: None if size is None else size * MIB for name, size in replicas.items()},
    )


def test_nothing_is_known_before_a_load() -> None:
    assert learned_bytes({}) is None


def test_the_most_that_a_replica_ever_held_counts() -> None:
    samples = learn(learn(learn({}, "a", 300 * MIB), "a", 420 * MIB), "a", 310 * MIB)
    assert samples == {"a": 420 * MIB}
    assert learned_bytes(learn(samples, "b", 350 * MIB + 1)) == 420 * MIB


def test_a_figure_is_in_whole_mib_and_never_too_small() -> None:
    assert learned_bytes({"a": 300 * MIB + 1}) == 301 * MIB


def test_old_loads_are_forgotten() -> None:
    samples = learn({}, "large", 900 * MIB)
    for number in range(SAMPLES_KEPT):
        samples = learn(samples, f"replica {number}", 300 * MIB)
    assert learned_bytes(samples) == 300 * MIB


def test_what_another_program_did_meanwhile_is_not_learned() -> None:
    for disturbed in (-200 * MIB, LEAST_BYTES - 1, MOST_BYTES + 1):
        assert learn({}, "a", disturbed) == {}


def test_stored_samples_come_back_and_damaged_ones_do_not() -> None:
    assert restored({"a": 300 * MIB, "b": "much", "c": 1, "d": None}) == {"a": 300 * MIB}
    assert restored([300 * MIB]) == {}


def test_the_fall_of_the_free_bytes_over_a_load_less_the_model_is_the_process() -> None:
    arrivals = Arrivals()
    assert arrivals.see(use(20_000)) is None
    assert arrivals.see(use(19_500, a=None)) is None
    assert arrivals.see(use(15_640, a=4_000)) is None, "the figure may be older than the end of the load"
    assert arrivals.see(use(15_650, a=4_000)) == ("a", 350 * MIB)
    assert arrivals.see(use(15_000, a=4_000)) is None, "once for each load"


def test_a_load_beside_another_replica_is_told_too() -> None:
    arrivals = Arrivals()
    arrivals.see(use(15_000, a=4_000))
    arrivals.see(use(14_000, a=4_000, b=None))
    arrivals.see(use(12_700, a=4_000, b=2_000))
    assert arrivals.see(use(12_700, a=4_000, b=2_000)) == ("b", 300 * MIB)


def test_a_load_while_another_replica_comes_or_goes_tells_nothing() -> None:
    scenes: list[tuple[dict[str, int | None], dict[str, int | None]]] = [({}, {"b": None}), ({"b": 1_000}, {})]
    for before, meanwhile in scenes:
        arrivals = Arrivals()
        arrivals.see(use(20_000, **before))
        arrivals.see(use(19_500, **before, a=None))
        arrivals.see(use(18_000, **meanwhile, a=None))
        arrivals.see(use(15_600, a=4_000))
        assert arrivals.see(use(15_600, a=4_000)) is None


def test_what_was_there_at_the_first_look_is_not_judged() -> None:
    arrivals = Arrivals()
    arrivals.see(use(15_000, a=4_000))
    assert arrivals.see(use(15_000, a=4_000)) is None

"""In which order the processes of a cluster start, and stop. Pure."""

from collections.abc import Mapping


def plan_start_waves(needs: Mapping[str, frozenset[str]]) -> tuple[tuple[str, ...], ...]:
    """Group services so that everything a service needs is in an earlier wave; a wave may start at once.

    Stopping takes the waves backwards: a service goes before what it needs. Within a wave the order of `needs` is kept.
    """
    unknown = frozenset().union(*needs.values()) - needs.keys()
    assert not unknown, f"needed but not planned: {sorted(unknown)}"
    waves: list[tuple[str, ...]] = []
    started: set[str] = set()
    while len(started) < len(needs):
        wave = tuple(name for name, needed in needs.items() if name not in started and needed <= started)
        assert wave, f"services need each other: {sorted(needs.keys() - started)}"
        waves.append(wave)
        started.update(wave)
    return tuple(waves)

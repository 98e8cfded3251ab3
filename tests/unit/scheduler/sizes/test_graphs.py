"""Measured graphs, and bounds of graphs in layouts without a measurement."""

import pytest

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.sizes.graphs import Bound, GraphBounds, GraphKind, Graphs
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport

A, B, C = (("n", name) for name in "abc")
Seen = tuple[Layout, MemoryReport]


def seen(*graphs: tuple[str, int], output: bool, projector: int = 0) -> Seen:
    """A measured layout with one layer on each of these devices; the last may have the output."""
    layout = Layout(
        devices=tuple(DeviceLayers(device_id=name, layer_count=1) for name, _ in graphs),
        context_tokens=512,
        slots=1,
        batch_tokens=512,
        output_on_host=not output,
    )
    devices = tuple(
        DeviceBytes(device_id=name, graph_bytes=graph, projector_bytes=0 if index else projector)
        for index, (name, graph) in enumerate(graphs)
    )
    return layout, MemoryReport(origin=MemoryOrigin.MEASURED, devices=devices, host=DeviceBytes(graph_bytes=3))


def bounds_of(*reports: Seen) -> GraphBounds:
    return GraphBounds(dict(reports), "n")


def kind(devices: int, *, output: bool, taken: int | None = None) -> GraphKind:
    return GraphKind(devices=devices, taken=devices if taken is None else taken, output=output)


def test_a_device_keeps_the_graph_that_was_last_measured_there() -> None:
    graphs = Graphs()
    for _, report in (seen(("a", 50), ("b", 60), output=False), seen(("a", 40), output=False)):
        graphs.take(report, "n")
    assert graphs.last == {A: 40, B: 60}
    assert (graphs.host_bytes, graphs.device_count) == (3, 1)


def test_a_measured_graph_is_not_guessed() -> None:
    bounds = bounds_of(seen(("a", 40), ("b", 190), output=True), seen(("a", 10), output=False))
    for bound in Bound:
        guess = bounds.guess(kind(2, output=True), [A, B], bound)
        assert guess.graphs[A] == 40
        assert guess.graphs[B] + guess.output_bytes[B] == 190


def test_what_the_output_adds_is_told_apart_from_the_graph_of_its_device() -> None:
    beside = bounds_of(seen(("a", 40), ("b", 190), output=True))
    guess = beside.guess(kind(2, output=True), [A, B], Bound.LIKE_THIS)
    assert (guess.graphs, guess.output_bytes) == ({A: 40, B: 40}, {A: 150, B: 150})
    exchanged = bounds_of(seen(("a", 40), ("b", 190), output=True), seen(("b", 90), ("a", 140), output=True))
    guess = exchanged.guess(kind(2, output=True), [A, B], Bound.LIKE_THIS)
    assert (guess.graphs, guess.output_bytes) == ({A: 40, B: 90}, {A: 100, B: 100})
    alone = bounds_of(seen(("a", 190), output=True), seen(("a", 40), output=False))
    assert alone.guess(kind(2, output=True), [A], Bound.EVER).output_bytes == {A: 150}
    unknown = bounds_of(seen(("a", 40), output=True))
    assert unknown.guess(kind(2, output=True), [A], Bound.EVER).output_bytes == {A: 0}


@pytest.mark.parametrize(
    ("bound", "sizes"),
    [
        (Bound.LIKE_THIS, {A: 80, B: 80, C: 80}),
        (Bound.EVER, {A: 30, B: 80, C: 30}),
        (Bound.SMALLER, {A: 15, B: 40, C: 15}),
        (Bound.NONE, {A: 0, B: 0, C: 0}),
    ],
)
def test_what_was_never_seen_is_guessed_from_the_best_founded_figure(bound: Bound, sizes: dict[object, int]) -> None:
    bounds = bounds_of(seen(("a", 80), ("b", 80), output=False), seen(("a", 30), output=False))
    assert bounds.guess(kind(2, output=False, taken=5), [A, B, C], bound).graphs == sizes


def test_the_same_layers_take_no_less_beside_them_on_more_devices() -> None:
    bounds = bounds_of(seen(("a", 80), ("b", 80), output=False), seen(("a", 30), output=False))
    for bound in (Bound.LIKE_THIS, Bound.EVER, Bound.SMALLER):
        assert bounds.guess(kind(3, output=False, taken=2), [A, B], bound).graphs == {A: 80, B: 80}
    assert bounds.guess(kind(3, output=False, taken=2), [A, B], Bound.NONE).graphs == {A: 0, B: 0}


def test_what_sees_goes_with_the_first_device_and_is_no_graph() -> None:
    bounds = bounds_of(seen(("a", 40), ("b", 40), output=False, projector=700))
    guess = bounds.guess(kind(2, output=False), [A, B], Bound.LIKE_THIS)
    assert (guess.graphs, guess.projector_bytes) == ({A: 40, B: 40}, 700)


def test_where_nothing_was_measured_nothing_is_taken_off() -> None:
    guess = bounds_of().guess(kind(1, output=True), [A], Bound.LIKE_THIS)
    assert (guess.graphs, guess.output_bytes) == ({A: 0}, {A: 0})

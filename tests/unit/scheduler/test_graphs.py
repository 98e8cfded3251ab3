"""How small a graph may be in a layout that nobody has measured."""

import pytest

from scheduler.core.graphs import Graphs, Hope
from scheduler.core.memory import DeviceBytes, MemoryOrigin, MemoryReport

LAYERS = 4
A, B, C = (("n", name) for name in "abc")


def seen(*graphs: tuple[str, int], output: bool) -> MemoryReport:
    """A measured layout over these devices, the last of which may have the output."""
    devices = []
    for index, (name, graph) in enumerate(graphs):
        has_output = output and index == len(graphs) - 1
        devices.append(
            DeviceBytes(
                device_id=name, graph_bytes=graph, layer_weights_bytes=(*[0] * (LAYERS - 1), 7 if has_output else 0)
            )
        )
    return MemoryReport(origin=MemoryOrigin.MEASURED, devices=tuple(devices), host=DeviceBytes(graph_bytes=3))


def graphs_of(*reports: MemoryReport) -> Graphs:
    graphs = Graphs()
    for report in reports:
        graphs.take(report, "n")
    return graphs


def test_a_device_keeps_the_graph_that_was_last_measured_there() -> None:
    graphs = graphs_of(seen(("a", 50), ("b", 60), output=False), seen(("a", 40), output=False))
    assert graphs.last == {A: 40, B: 60}
    assert (graphs.host_bytes, graphs.device_count) == (3, 1)


def test_what_the_output_adds_is_told_apart_from_the_graph_of_its_device() -> None:
    graphs = graphs_of(seen(("a", 40), ("b", 190), output=True))
    assert graphs.output_bytes == 150
    assert graphs.least([A, B], output=True, count=2, hope=Hope.LIKE_THIS) == {A: 40, B: 40}
    alone = graphs_of(seen(("a", 190), output=True), seen(("a", 40), output=False))
    assert alone.output_bytes == 150
    assert graphs_of(seen(("a", 40), output=True)).output_bytes == 0


@pytest.mark.parametrize(
    ("hope", "sizes"),
    [
        (Hope.LIKE_THIS, {A: 80, B: 80, C: 80}),
        (Hope.EVER, {A: 30, B: 80, C: 30}),
        (Hope.SMALLER, {A: 15, B: 40, C: 15}),
        (Hope.NONE, {A: 0, B: 0, C: 0}),
    ],
)
def test_what_was_never_seen_is_guessed_from_the_best_founded_figure(hope: Hope, sizes: dict[object, int]) -> None:
    graphs = graphs_of(seen(("a", 80), ("b", 80), output=False), seen(("a", 30), output=False))
    assert graphs.least([A, B, C], output=False, count=2, hope=hope) == sizes


def test_where_nothing_was_measured_nothing_is_taken_off() -> None:
    assert Graphs().least([A], output=True, count=1, hope=Hope.LIKE_THIS) == {A: 0}

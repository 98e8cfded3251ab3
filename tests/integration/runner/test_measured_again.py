"""A formula that is off: the engine counts once more with one layer moved, and that layer's bytes are the engine's."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from common.errors import InvalidRequest
from common.spec.layout import DeviceLayers, Layout
from protos import cluster_pb2
from runner import measure as mode
from runner.core.model.model_files import ModelFiles
from runner.engine.llama import accounting
from runner.measure import measure
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.devices import spread
from tests.limited_device import LimitedDevice, limited_device

EVENTS = ("memory.formula_off", "memory.counted_again", "memory.not_counted_again")


@pytest.fixture(scope="module")
def devices() -> Iterator[tuple[LimitedDevice, ...]]:
    with ExitStack() as stack:
        yield tuple(stack.enter_context(limited_device(mib=256)) for _ in range(2))


@pytest.fixture
def no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of a kind that no formula knows."""
    monkeypatch.setattr(accounting, "block_cache_bytes", lambda numbers, *_, **__: (0,) * numbers.block_count)


def measured(files: ModelFiles, layout: Layout) -> tuple[cluster_pb2.MemoryReport, list[dict[str, Any]]]:
    with capture_logs() as lines:
        report = measure(files, layout)
    return report, [dict(line) for line in lines if line["event"] in EVENTS]


@pytest.mark.behaviour("B-64")
def test_a_layer_is_moved_and_has_what_the_engine_counts_for_it(
    zoo: Zoo, devices: tuple[LimitedDevice, ...], request: pytest.FixtureRequest
) -> None:
    files = ModelFiles(model=zoo("swa"))  # its blocks have caches of two sizes
    layout = spread(devices, (3, 3), context_tokens=8192)
    right, events = measured(files, layout)
    assert events == []
    truth = list(right.devices[0].layer_cache_bytes)
    assert len(set(truth[1:4])) == 2

    request.getfixturevalue("no_formula")
    found, events = measured(files, layout)
    assert {event["device"] for event in events if event["event"] == EVENTS[0]} == {"gpu-a", "gpu-b"}
    (again,) = [event for event in events if event["event"] == EVENTS[1]]
    place = 0 if again["block"] < 4 else 1
    learned, known = found.devices[place], right.devices[place]
    # Exact for the layer that was moved; the others share the rest evenly, for nobody knows better.
    assert again["cache_bytes"] == learned.layer_cache_bytes[again["block"]] == known.layer_cache_bytes[again["block"]]
    assert again["weights_bytes"] is None
    others = [size for block, size in enumerate(learned.layer_cache_bytes) if size and block != again["block"]]
    assert max(others) - min(others) <= 1
    # Totals, graphs and weights are those of the layout that was asked for.
    for mine, theirs in zip((*found.devices, found.host), (*right.devices, right.host), strict=True):
        assert (mine.weights_bytes, mine.graph_bytes) == (theirs.weights_bytes, theirs.graph_bytes)
        assert mine.cache_bytes == theirs.cache_bytes
        assert mine.layer_weights_bytes == theirs.layer_weights_bytes
    assert found.origin == cluster_pb2.MEMORY_ORIGIN_MEASURED


@pytest.mark.usefixtures("no_formula")
def test_a_pooled_model_is_counted_again_too(zoo: Zoo, devices: tuple[LimitedDevice, ...]) -> None:
    lent = (DeviceLayers("gpu-a", 99, rpc_address=devices[0].address),)
    found, events = measured(ModelFiles(model=zoo("embed_last")), Layout(devices=lent, context_tokens=8192, threads=1))
    (again,) = [event for event in events if event["event"] == EVENTS[1]]
    sizes = found.devices[0].layer_cache_bytes
    assert again["block"] == 0
    assert sizes[0] == again["cache_bytes"] == found.devices[0].cache_bytes // (len(sizes) - 1)


@pytest.mark.usefixtures("no_formula")
def test_a_second_count_that_is_refused_leaves_the_first(
    zoo: Zoo, devices: tuple[LimitedDevice, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, layout = ModelFiles(model=zoo("dense")), spread(devices, (9,), context_tokens=8192)
    loaded = []
    load = mode._load_without_memory

    def load_once(launch: Any) -> Any:
        loaded.append([device.layer_count for device in launch.layout.devices])
        if len(loaded) > 1:
            raise InvalidRequest("not with this layout")
        return load(launch)

    monkeypatch.setattr(mode, "_load_without_memory", load_once)
    found, events = measured(files, layout)
    assert loaded == [[9], [8]]
    assert [event["event"] for event in events] == [EVENTS[0], EVENTS[2]]
    sizes = found.devices[0].layer_cache_bytes
    assert sizes[0] * 8 == sum(sizes) == found.devices[0].cache_bytes > 0


@pytest.mark.usefixtures("no_formula")
def test_in_host_ram_alone_there_is_nothing_to_move(zoo: Zoo) -> None:
    _, events = measured(ModelFiles(model=zoo("dense")), Layout(slots=2, context_tokens=8192, threads=1))
    assert [event["event"] for event in events] == [EVENTS[0]]

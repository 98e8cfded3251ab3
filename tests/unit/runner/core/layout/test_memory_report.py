"""From buffers to bytes per device."""

from runner.core.layout.memory_report import (
    BufferUse,
    ClassBytes,
    MemoryUse,
    extrapolate,
    sum_by_device,
)


def use(buffer_type: str, device_id: str | None, weights: int, cache: int, graph: int) -> BufferUse:
    counted = ClassBytes(weights_bytes=weights, cache_bytes=cache, graph_bytes=graph)
    return BufferUse(buffer_type=buffer_type, device_id=device_id, bytes=counted)


def test_buffers_of_one_device_are_added_class_by_class() -> None:
    summed = sum_by_device(
        [use("CUDA0", "g", 1, 2, 3), use("CUDA0_Split", "g", 10, 0, 0), use("CPU", None, 5, 0, 0)], device_ids=["g"]
    )
    assert summed.devices == (("g", ClassBytes(weights_bytes=11, cache_bytes=2, graph_bytes=3)),)
    assert summed.host == ClassBytes(weights_bytes=5)


def test_devices_come_in_the_order_of_the_layout_even_without_a_byte() -> None:
    summed = sum_by_device([use("B", "b", 1, 0, 0), use("C", "c", 1, 0, 0)], device_ids=["a", "b"])
    assert [device_id for device_id, _ in summed.devices] == ["a", "b", "c"]


def test_the_line_through_two_measurements_is_followed_exactly() -> None:
    def measured(cells: int) -> MemoryUse:
        return MemoryUse(
            devices=(("g", ClassBytes(weights_bytes=7, cache_bytes=100 * cells, graph_bytes=9 + cells)),),
            host=ClassBytes(cache_bytes=3),
        )

    there = extrapolate(measured(10), measured(20), small_cells=10, large_cells=20, cells=1000)
    assert there == measured(1000)

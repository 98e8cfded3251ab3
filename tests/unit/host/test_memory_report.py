"""From buffers to bytes per device."""

import pytest

from runner.core.layout.memory_report import (
    MIB,
    BufferUse,
    ClassBytes,
    MemoryUse,
    extrapolate,
    parse_buffer_lines,
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


@pytest.mark.behaviour("B-64")
def test_log_lines_of_a_load_are_read_by_class() -> None:
    lines = [
        "load_tensors:   CPU_Mapped model buffer size =    57.20 MiB",
        "llama_kv_cache:        CPU KV buffer size =    64.00 MiB",
        "llama_kv_cache: RPC0[127.0.0.1:50052] KV buffer size =     8.00 MiB",
        "llama_context:        CPU  output buffer size =     0.25 MiB",
        "sched_reserve:        CPU compute buffer size =    34.25 MiB",
        "llama_memory_recurrent:        CPU RS buffer size =     1.50 MiB",
        "something else: 12 MiB",
    ]
    assert dict(parse_buffer_lines(lines)) == {
        "CPU_Mapped": ClassBytes(weights_bytes=round(57.2 * MIB)),
        "CPU": ClassBytes(cache_bytes=round(65.75 * MIB), graph_bytes=round(34.25 * MIB)),
        "RPC0[127.0.0.1:50052]": ClassBytes(cache_bytes=8 * MIB),
    }

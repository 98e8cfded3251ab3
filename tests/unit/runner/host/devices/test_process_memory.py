"""Memory of processes as a host learns, keeps and shows it: by build, driver and device."""

from pathlib import Path

import pytest

from protos import cluster_pb2
from runner.core.devices.process_memory import MIB
from runner.host.devices.device_notes import DeviceNotes
from runner.host.devices.process_memory import ProcessMemory

BUILD = "build 1"
NO_LEASES: tuple[str, ...] = ()


def card(
    *, held_mib: int | None = None, free_mib: int = 20_000, driver: str = "nvidia 1", source: str = "nvml"
) -> cluster_pb2.Device:
    device = cluster_pb2.Device(
        id="GPU-1",
        backend="CUDA",
        description="a card",
        driver=driver,
        free_bytes=free_mib * MIB,
        free_source=source,
        trust=cluster_pb2.TRUST_MEASURED,
    )
    if held_mib is not None:
        device.holders.add(placement_id="a", listed=True, held_bytes=held_mib * MIB)
    return device


def replica(*, model_mib: int = 4_000, loaded: bool = True) -> cluster_pb2.RunnerRecord:
    state = cluster_pb2.RUNNER_STATE_READY if loaded else cluster_pb2.RUNNER_STATE_LOADING
    record = cluster_pb2.RunnerRecord(
        placement=cluster_pb2.PlacementRef(placement_id="a", incarnation="a-1"),
        status=cluster_pb2.RunnerStatus(state=state),
    )
    record.layout.devices.add(device_id="GPU-1", layer_count=33)
    if loaded:
        record.status.memory.origin = cluster_pb2.MEMORY_ORIGIN_ALLOCATED
        record.status.memory.devices.add(
            device_id="GPU-1", weights_bytes=(model_mib - 500) * MIB, cache_bytes=300 * MIB, graph_bytes=200 * MIB
        )
    return record


def shown(memory: ProcessMemory, device: cluster_pb2.Device | None = None, *, build: str = BUILD) -> int | None:
    (marked,) = memory.mark([device or card()], build)
    return marked.process_bytes // MIB if marked.process_learned else None


def test_a_process_that_the_driver_lists_shows_what_it_holds_beside_its_model() -> None:
    memory = ProcessMemory(DeviceNotes(None))
    assert shown(memory) is None
    memory.look([replica()], [card(held_mib=4_310)], BUILD)
    assert shown(memory) == 310
    memory.look([replica()], [card(held_mib=4_400)], BUILD)
    assert shown(memory) == 400, "pools have grown"


def test_a_replica_that_loads_shows_nothing_yet() -> None:
    memory = ProcessMemory(DeviceNotes(None))
    memory.look([replica(loaded=False)], [card(held_mib=4_310)], BUILD)
    assert shown(memory) is None


@pytest.mark.parametrize(("leases", "learned"), [(NO_LEASES, 350), (("GPU-1",), None)])
def test_where_the_driver_lists_no_processes_the_free_bytes_over_a_load_count(
    leases: tuple[str, ...], learned: int | None
) -> None:
    memory = ProcessMemory(DeviceNotes(None), lent=lambda: leases)
    memory.look([], [card()], BUILD)
    memory.look([replica(loaded=False)], [card(free_mib=19_000)], BUILD)
    for _ in range(2):
        memory.look([replica()], [card(free_mib=15_650)], BUILD)
    assert shown(memory) == learned


def test_it_holds_for_one_build_and_driver() -> None:
    memory = ProcessMemory(DeviceNotes(None))
    memory.look([replica()], [card(held_mib=4_310)], BUILD)
    assert shown(memory, build="build 2") is None
    assert shown(memory, card(driver="nvidia 2")) is None


def test_a_prediction_teaches_nothing() -> None:
    memory = ProcessMemory(DeviceNotes(None))
    memory.look([replica()], [card(held_mib=4_310, source="ggml")], BUILD)
    assert shown(memory) is None


def test_a_restarted_host_knows_it(tmp_path: Path) -> None:
    ProcessMemory(DeviceNotes(tmp_path / "notes")).look([replica()], [card(held_mib=4_310)], BUILD)
    assert shown(ProcessMemory(DeviceNotes(tmp_path / "notes"))) == 310


def test_the_operators_figure_is_not_replaced() -> None:
    memory = ProcessMemory(DeviceNotes(None))
    memory.look([replica()], [card(held_mib=4_310)], BUILD)
    fixed = card()
    fixed.process_bytes = 700 * MIB
    (marked,) = memory.mark([fixed], BUILD)
    assert (marked.process_bytes, marked.process_learned) == (700 * MIB, False)

"""One entry for each card, however many backends and builds list it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.devices.dedupe import Listed, choose_entries, normal_name
from runner.core.devices.devices import DeviceType, EngineDevice

pytestmark = pytest.mark.behaviour("B-130")

GIB = 1024**3
MIB = 1024**2


def card(backend: str = "CUDA", **changes: object) -> EngineDevice:
    facts: dict[str, object] = {
        "name": f"{backend}0",
        "backend": backend,
        "description": "NVIDIA H100",
        "pci_id": "",
        "type": DeviceType.GPU,
        "total_bytes": 80 * GIB,
        "free_bytes": GIB,
        **changes,
    }
    return EngineDevice(**facts)  # type: ignore[arg-type]


def kept(*listed: Listed) -> list[str]:
    return [listed[index].device.name for index, used in sorted(choose_entries(listed).items()) if index == used]


def test_cuda_stands_for_a_card_that_vulkan_lists_too_whatever_the_order() -> None:
    vulkan, cuda = card("Vulkan", pci_id="0000:01:00.0"), card("CUDA", pci_id="0000:01:00.0")
    assert choose_entries([Listed(device=vulkan), Listed(device=cuda)]) == {0: 1, 1: 1}
    assert choose_entries([Listed(device=cuda), Listed(device=vulkan)]) == {0: 0, 1: 0}


def test_a_backend_that_failed_its_check_gives_way_to_one_that_works() -> None:
    vulkan, cuda = card("Vulkan", pci_id="0000:01:00.0"), card("CUDA", pci_id="0000:01:00.0")
    assert kept(Listed(device=cuda, usable=False), Listed(device=vulkan)) == ["Vulkan0"]


def test_cards_with_other_addresses_or_uuids_are_other_cards() -> None:
    assert len(kept(*(Listed(device=card(b, pci_id=f"0000:0{i}:00.0")) for i, b in enumerate(["CUDA", "Vulkan"])))) == 2
    same_address = {"pci_id": "0000:01:00.0"}  # two partitions of one card
    parts = [Listed(device=card("CUDA", uuid=f"MIG-{i}", **same_address)) for i in range(2)]
    assert len(kept(*parts)) == 2


@pytest.mark.parametrize(("difference", "cards"), [(511 * MIB, 1), (4 * GIB, 1), (5 * GIB, 2)])
def test_without_an_address_name_and_size_tell(difference: int, cards: int) -> None:
    other = card("Vulkan", description="H100 (RADV)", total_bytes=80 * GIB - difference)
    assert len(kept(Listed(device=card()), Listed(device=other))) == cards


def test_equal_cards_of_one_backend_are_all_kept() -> None:
    cuda = [Listed(device=card("CUDA", name=f"CUDA{i}", pci_id=f"0000:0{i}:00.0")) for i in range(2)]
    vulkan = [Listed(device=card("Vulkan", name=f"Vulkan{i}")) for i in range(3)]
    assert kept(*cuda, *vulkan) == ["CUDA0", "CUDA1", "Vulkan2"]


def test_cards_without_memory_are_dropped_and_helpers_are_not() -> None:
    helper = card("BLAS", name="BLAS", type=DeviceType.ACCELERATOR, total_bytes=0)
    assert choose_entries([Listed(device=card(total_bytes=0)), Listed(device=helper)]) == {1: 1}


def test_lent_devices_are_never_taken_for_one_another() -> None:
    lent = [
        Listed(device=card("RPC", endpoint=f"127.0.0.1:{port}", lent_number=number))
        for port in (1, 2)
        for number in (0, 1)
    ]
    assert len(kept(*lent, Listed(device=card("RPC", description="")))) == 5


def test_names_are_compared_without_maker_and_marks() -> None:
    assert normal_name("NVIDIA GeForce RTX(TM) 4090") == normal_name("rtx 4090") == "rtx 4090"


CARDS = st.lists(
    st.tuples(
        st.sampled_from(["CUDA", "Vulkan", "ROCm"]),
        st.integers(min_value=0, max_value=4),  # which real card
        st.booleans(),  # has an address
        st.booleans(),  # usable
    ),
    unique_by=lambda entry: (entry[0], entry[1]),
    max_size=12,
)


@given(entries=CARDS)
def test_no_card_is_lost_and_none_is_kept_twice(entries: list[tuple[str, int, bool, bool]]) -> None:
    listed = [
        Listed(
            device=card(
                backend,
                name=f"{backend}{number}",
                description=f"Card {number}",
                pci_id=f"0000:0{number}:00.0" if address else "",
                total_bytes=(number + 1) * 10 * GIB,
            ),
            usable=usable,
        )
        for backend, number, address, usable in entries
    ]
    chosen = choose_entries(listed)
    kept = [listed[index] for index in set(chosen.values())]
    cards = [one.device.description for one in kept]
    assert sorted(set(cards)) == sorted({one.device.description for one in listed})
    assert len(cards) == len(set(cards))
    for one in kept:
        if not one.usable:
            assert not any(other.usable for other in listed if other.device.description == one.device.description)
    assert sorted(chosen) == list(range(len(listed)))

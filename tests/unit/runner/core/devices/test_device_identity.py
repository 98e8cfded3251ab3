"""Names of devices that outlive restarts."""

from runner.core.devices.devices import HOST_POOL, DeviceType, EngineDevice, identify


def device(**changes: object) -> EngineDevice:
    facts: dict[str, object] = {
        "name": "CUDA0",
        "backend": "CUDA",
        "description": "a card",
        "pci_id": "0000:c1:00.0",
        "type": DeviceType.GPU,
        "total_bytes": 1,
        "free_bytes": 1,
        **changes,
    }
    return EngineDevice(**facts)  # type: ignore[arg-type]


def test_a_card_is_named_by_its_uuid_else_by_its_address() -> None:
    assert identify(device(uuid="GPU-1")).id == "GPU-1"
    assert identify(device()).id == "0000:c1:00.0"


def test_a_card_without_either_is_named_by_backend_and_marked_unstable() -> None:
    identity = identify(device(pci_id=""))
    assert (identity.id, identity.stable) == ("CUDA:CUDA0", False)


def test_the_cpu_is_always_cpu_and_draws_from_host_ram() -> None:
    identity = identify(device(name="CPU", backend="CPU", type=DeviceType.CPU, pci_id=""))
    assert (identity.id, identity.stable, identity.pool_id) == ("cpu", True, HOST_POOL)


def test_integrated_graphics_share_the_host_pool_and_cards_have_their_own() -> None:
    assert identify(device(type=DeviceType.INTEGRATED)).pool_id == HOST_POOL
    assert identify(device()).pool_id == "0000:c1:00.0"


def test_lent_devices_are_named_by_their_server_and_share_its_pool() -> None:
    first, second = (
        identify(device(backend="RPC", pci_id="", endpoint="h:5", name=f"RPC{7 + i}", lent_number=i)) for i in (0, 1)
    )
    assert (first.id, second.id) == ("RPC:h:5/0", "RPC:h:5/1")
    assert first.pool_id == second.pool_id
    assert not first.stable

"""Does the engine compute, and on what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.cluster.demo import shipped_demo
from cli.core.doctor.assessments import AMX_FLAG, TriedDevice, assess_devices, assess_engine, assess_unused_cards
from cli.core.doctor.findings import Finding, fail, skip
from cli.doctor.children import run_runner
from common.startup_error import StartupError
from runner.core.devices.device_settings import DeviceSettings
from runner.host.settings import HostSettings

_WITHIN_S = 120.0
_PROBE_WITHIN_S = 60.0
_KINDS = {
    "DEVICE_TYPE_CPU": "cpu",
    "DEVICE_TYPE_GPU": "gpu",
    "DEVICE_TYPE_INTEGRATED": "integrated",
    "DEVICE_TYPE_ACCELERATOR": "accelerator",
}


def inspect_engine() -> Iterator[Finding]:
    """Have it compute with the demo model."""
    model = shipped_demo()
    result = run_runner("self-test", *(("--model", str(model)) if model else ()), within_s=_WITHIN_S)
    if result.exit_code is None:
        yield fail("engine", f"its test does not end: {result.last_line}", "look whether the machine is overloaded")
        return
    report = result.objects[-1] if result.objects else None
    yield from assess_engine(
        report=report, exit_code=result.exit_code, last_line=result.last_line, has_amx=AMX_FLAG in _processor_flags()
    )


def inspect_devices(*, in_use: bool) -> Iterator[Finding]:
    """List and test every device. `in_use`: a cluster runs here, whose host answers for them."""
    if in_use:
        yield skip("devices", "the running host answers for them; see nodes below")
        return
    try:
        settings = HostSettings.load().devices
    except StartupError:
        settings = DeviceSettings()  # what is wrong is said beside the environment
    probe = run_runner("probe", within_s=_PROBE_WITHIN_S)
    if probe.exit_code != 0 or not probe.objects:
        trouble = probe.last_line or f"exit status {probe.exit_code}"
        yield fail("devices", f"they cannot be listed: {trouble}", "a driver may hang or not fit; see docs/gpu.md")
        return
    tried = [_tried(device, settings) for device in probe.objects[0].get("devices") or []]
    yield from assess_devices(tried, excluded=settings.excluded, integrated=settings.integrated)
    yield from assess_unused_cards(_driver_cards(), tried)


def _tried(device: dict[str, Any], settings: DeviceSettings) -> TriedDevice:
    kind = _KINDS.get(str(device.get("type")), "cpu")
    trouble: str | None = None
    # As a host does: the CPU is what everything else is compared with, and what is left out is left alone.
    if kind != "cpu" and device["id"] not in settings.excluded:
        backend = str(device.get("backend") or "")
        check = run_runner(
            "probe", "--check", device["id"], "--backend", backend, "--no-speed", within_s=_PROBE_WITHIN_S
        )
        if check.exit_code != 0:
            trouble = check.last_line or f"exit status {check.exit_code}"
    return TriedDevice(
        id=str(device["id"]),
        name=str(device.get("name", "")),
        kind=kind,
        description=str(device.get("description", "")),
        total_bytes=int(device.get("total_bytes") or 0),
        free_bytes=int(device.get("free_bytes") or 0),
        trouble=trouble,
    )


def _driver_cards() -> list[str]:
    """GPUs that NVIDIA's driver has, as the kernel shows them; others show nothing alike."""
    found = []
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        lines = path.read_text(errors="replace").splitlines()
        found.append(
            next((line.partition(":")[2].strip() for line in lines if line.startswith("Model")), path.parent.name)
        )
    return found


def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())

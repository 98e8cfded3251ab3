"""Engine, devices, ports, disks, limits and clocks. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cli.core.doctor.findings import Finding, fail, ok, skip, warn
from cli.core.formatting import format_bytes
from runner.core.devices.device_settings import IntegratedGpus

GIB = 1024**3
DISK_FAIL_BYTES = GIB
DISK_WARN_BYTES = 10 * GIB
OPEN_FILES_WARN = 4096
SKEW_WARN_S = 5.0
SKEW_FAIL_S = 60.0
# GCC before 12.4 and 13.3 drops stores that AMX needs; tools/compiler_flags.sh has the story.
AMX_FLAG = "amx_tile"
_AMX_ADVICE = (
    "a compiler without a correct AMX built it: build llama-cpp-python here with"
    " CXXFLAGS='-fno-tree-dse -fno-dse', or a newer GCC; `make setup` does that"
)
_BUILD_ADVICE = "it was built for another processor: build llama-cpp-python on this machine; `make setup` does that"


def assess_engine(
    *, report: Mapping[str, Any] | None, exit_code: int, last_line: str, has_amx: bool
) -> Iterator[Finding]:
    """Report the engine's self-test; a negative exit code is the number of the signal that ended it."""
    if report is None:
        if exit_code < 0:
            advice = _AMX_ADVICE if has_amx else _BUILD_ADVICE
            yield fail("engine", f"it crashes when it computes (signal {-exit_code})", advice)
        else:
            advice = "install llama-cpp-python as requirements.lock says; `make setup` builds it"
            yield fail("engine", f"it does not start: {last_line or f'exit status {exit_code}'}", advice)
        return
    build, backends = report.get("build"), ", ".join(report.get("backends") or [])
    if report.get("trouble"):
        yield fail("engine", f"{build}: {report['trouble']}", _AMX_ADVICE if has_amx else _BUILD_ADVICE)
    elif report.get("computed"):
        yield ok("engine", f"{build} computes with quantized weights; backends: {backends}")
    else:
        yield skip("engine", f"{build}; backends: {backends}; without the demo model nothing was computed")
    if not report.get("rpc"):
        advice = "build llama-cpp-python with CMAKE_ARGS=-DGGML_RPC=on; only models over several nodes need it"
        yield warn("engine", "it cannot use devices of other nodes", advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDevice:
    """A device that the engine lists, and how its test went; None: not tested."""

    id: str
    name: str
    kind: str  # cpu, gpu, integrated, accelerator
    description: str
    total_bytes: int
    free_bytes: int
    trouble: str | None


def assess_devices(
    devices: Iterable[TriedDevice], *, excluded: frozenset[str], integrated: IntegratedGpus
) -> Iterator[Finding]:
    """Report the devices that models can be placed on, and those that are left out, with the reason."""
    known = list(devices)
    discrete = any(one.kind == "gpu" and not one.trouble and one.id not in excluded for one in known)
    for one in known:
        size = f"{format_bytes(one.free_bytes)} free of {format_bytes(one.total_bytes)}"
        text = f"{one.name} ({one.description}), {size}"
        if one.id in excluded:
            yield ok("devices", f"{text}: left out, PUNA_EXCLUDED_DEVICES names it")
        elif one.trouble:
            advice = "its driver or the build for it is broken; docs/gpu.md says what goes together"
            yield fail("devices", f"{text}: left out, its test failed: {one.trouble}", advice)
        elif one.kind == "integrated" and integrated is IntegratedGpus.OFF:
            yield ok("devices", f"{text}: left out, PUNA_INTEGRATED_GPUS=off")
        elif one.kind == "integrated" and integrated is IntegratedGpus.AUTO and discrete:
            yield ok("devices", f"{text}: left out beside a discrete GPU; PUNA_INTEGRATED_GPUS=on uses it")
        else:
            yield ok("devices", text)
    for missing in sorted(excluded - {one.id for one in known}):
        yield warn(
            "devices", f"PUNA_EXCLUDED_DEVICES names {missing}, which is not here", "look for it in the lines above"
        )
    if not any(one.kind in ("gpu", "integrated") for one in known):
        yield ok("devices", "no GPU; models run on the CPU")


def assess_unused_cards(cards: Iterable[str], devices: Iterable[TriedDevice]) -> Iterator[Finding]:
    """Cards that a driver knows while the engine lists no GPU at all."""
    found = sorted(cards)
    if found and not any(one.kind in ("gpu", "integrated") for one in devices):
        advice = "build llama-cpp-python for it, CMAKE_ARGS=-DGGML_CUDA=on for NVIDIA; see docs/gpu.md"
        yield warn("devices", f"the driver knows {', '.join(found)}, but this build of the engine does not", advice)


def assess_port(
    *, name: str, address: str, variable: str, taken: bool, owner: str, is_ours: bool, is_puna: bool
) -> Finding:
    """Check a port that `puna up` needs. `owner` is the process that has it, as far as that is visible."""
    if not taken:
        return ok("ports", f"{address} ({name}) is free")
    if is_ours:
        return ok("ports", f"{address} ({name}) is served by the cluster in this home")
    if is_puna:
        return ok("ports", f"{address} ({name}) is served by another Puna{owner and f', {owner}'}")
    who = owner or "another process, which only root can see"
    advice = f"stop it, or choose another address with {variable}"
    return fail("ports", f"{address} ({name}) is taken by {who}", advice)


def assess_disk(*, what: str, path: str, free_bytes: int, total_bytes: int, writable: bool) -> Finding:
    """Room where something is written."""
    text = f"{what} {path}: {format_bytes(free_bytes)} free of {format_bytes(total_bytes)}"
    if not writable:
        return fail("disk", f"{text}, but it cannot be written", f"give it to this user, or choose another with {what}")
    if free_bytes < DISK_FAIL_BYTES:
        return fail("disk", text, "delete models with `puna rm`, or choose another disk")
    if free_bytes < DISK_WARN_BYTES:
        return warn("disk", text, "a model will hardly fit; delete some with `puna rm`, or choose another disk")
    return ok("disk", text)


def assess_open_files(soft: int, hard: int) -> Finding:
    """Check the limit of open files and connections; a negative number means unlimited."""
    if soft < 0 or soft >= OPEN_FILES_WARN:
        return ok("limits", "open files: unlimited" if soft < 0 else f"open files: {soft}")
    advice = f"each client is one: `ulimit -n {min(hard, 65536) if hard > 0 else 65536}` before `puna up`"
    return warn("limits", f"open files: {soft}", advice)


def assess_skew(whose: str, skew_s: float) -> Finding:
    """Check the difference between another clock and this one."""
    text = f"{whose} is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) < SKEW_WARN_S:
        return ok("clocks", f"{whose} agrees with this machine's")
    advice = "let both follow NTP; keys and certificates expire by the clock"
    return fail("clocks", text, advice) if abs(skew_s) >= SKEW_FAIL_S else warn("clocks", text, advice)

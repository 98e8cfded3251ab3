"""Engine, devices, disks, model files, limits and ports of this machine.

Engine and files are tried in short-lived processes of the runner, as a host starts them: what crashes there crashes
alone.
"""

import asyncio
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from cli.cluster.demo import shipped_demo
from cli.cluster.home import ClusterRecord, set_aside_files
from cli.cluster.log_files import last_lines
from cli.cluster.zygote import PACKAGES
from cli.core.doctor.assessments import (
    AMX_FLAG,
    CheckedModels,
    TriedDevice,
    assess_certificate,
    assess_devices,
    assess_disk,
    assess_engine,
    assess_filters,
    assess_open_files,
    assess_port,
    assess_sandbox,
    assess_unused_cards,
    assess_users,
)
from cli.core.doctor.findings import Finding, fail, skip, warn
from cli.core.formatting import format_bytes
from cli.core.server_address import DEFAULT_GRPC_PORT, DEFAULT_PORT, listen_address
from cli.settings import CliSettings
from common.errors import BadModelFile
from common.network import is_taken, listening_inodes, split_host_port
from common.sandbox.confinement import has_filters, landlock_version
from common.sandbox.own_users import separation_fault
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.certificates import BadCertificate, read_facts, when
from common.trust.identity import CERTIFICATE, read_trusted
from runner.core.devices.device_settings import DeviceSettings
from runner.core.model.file_names import is_own_name
from runner.core.store.manifest import MediaType, parse_manifest
from runner.host.files.blobs import BlobStore
from runner.host.files.file_threads import FileStandsStill, FileThreads
from runner.host.files.manifests import ManifestStore
from runner.host.models.sources import Finder, ModelSource
from runner.host.registry.leftovers import unfinished
from runner.host.settings import HostSettings

_PORT_ANSWERS_WITHIN_S = 2.0
_CHECK_WITHIN_S = 300.0
_FILE_ANSWERS_WITHIN_S = 5.0  # of one question to the file system
_OF_ENGINE = frozenset({MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER})
_SELF_TEST_WITHIN_S = 120.0
_PROBE_WITHIN_S = 60.0
# Of the log of a Redis that ended because it could not read its file.
_LINES_OF_REFUSAL = 12
_REFUSED_DATA = re.compile("Bad file format|Internal error in RDB|AOF manifest|Fatal error loading|Unexpected end")
_KINDS = {
    "DEVICE_TYPE_CPU": "cpu",
    "DEVICE_TYPE_GPU": "gpu",
    "DEVICE_TYPE_INTEGRATED": "integrated",
    "DEVICE_TYPE_ACCELERATOR": "accelerator",
}


def inspect_engine() -> Iterator[Finding]:
    """Have it compute with the demo model."""
    model = shipped_demo()
    result = run_runner("self-test", *(("--model", str(model)) if model else ()), within_s=_SELF_TEST_WITHIN_S)
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


def inspect_disks(home: Path, models: Path) -> Iterator[Finding]:
    """Check the disks of the state and of the models."""
    for what, path in (("PUNA_HOME", home), ("PUNA_MODELS", models)):
        existing = next(one for one in (path, *path.parents) if one.exists())
        try:
            usage = shutil.disk_usage(existing)
        except OSError:
            continue  # gone in this moment
        yield assess_disk(
            what=what,
            path=str(path),
            free_bytes=usage.free,
            total_bytes=usage.total,
            writable=os.access(existing, os.W_OK | os.X_OK),
        )


def inspect_unfinished(models: Path) -> Iterator[Finding]:
    """Name the downloads that are not complete."""
    for download in unfinished(BlobStore(models / "blobs")):
        size = f"{format_bytes(download.done_bytes)} of {format_bytes(download.size_bytes)}"
        yield warn(
            "models",
            f"{download.path.name}: a download that is not complete, {size}",
            f"pull its model, which goes on with it, or delete it: rm {download.path}*",
        )


def check_models(directory: Path) -> CheckedModels:
    """Check every model of a directory: its files are there, and are what they say. Nothing of the weights is read."""
    manifests, blobs = ManifestStore(directory / "manifests"), BlobStore(directory / "blobs")
    troubles: dict[str, str] = {}
    files: dict[str, list[Path]] = {}
    found = asyncio.run(_find(directory, manifests, blobs))
    for source in found or ():
        try:
            files[source.name] = _files(source, manifests, blobs)
        except (BadModelFile, OSError) as error:
            troubles[source.name] = str(error)
    said = _check([path for paths in files.values() for path in paths])
    for name, paths in files.items():
        troubles[name] = next((said[str(path)] for path in paths if said[str(path)]), "")
    renamed = {
        source.name: source.paths[0].name
        for source in found or ()
        if source.stored is None and source.name in files and not is_own_name(source.paths[0])
    }
    return CheckedModels(troubles=troubles, renamed=renamed, answers=found is not None)


async def _find(directory: Path, manifests: ManifestStore, blobs: BlobStore) -> list[ModelSource] | None:
    """Find every model; one whose first bytes do not come is in trouble, so that no process waits for them."""
    sources = await Finder(directory, manifests, blobs, silence_s=_FILE_ANSWERS_WITHIN_S).find(())
    threads = FileThreads(silence_s=_FILE_ANSWERS_WITHIN_S)
    checked: list[ModelSource] = []
    for source in sources or ():
        trouble = source.trouble
        for path in source.paths if source.stored is None and not trouble else ():
            try:
                await threads.read_first(path)
            except FileStandsStill as error:
                trouble = error.message
            except OSError as error:
                trouble = f"{path}: {error.strerror}"
        checked.append(replace(source, trouble=trouble))
    return checked if sources is not None else None


def inspect_state(home: Path) -> Iterator[Finding]:
    """Name the files of a home that could not be read, and say what to do."""
    for path in set_aside_files(home):
        yield warn("state", f"{path.name} could not be read and was set aside", f"look at it and delete it: rm {path}")
    data = home / "redis" / "appendonlydir"
    said = last_lines(home / "logs" / "redis.log", count=_LINES_OF_REFUSAL)
    trouble = next((line for line in said if _REFUSED_DATA.search(line)), None)
    if data.exists() and trouble is not None:
        advice = (
            f"restore it, or begin with an empty one, without aliases, pins and keys made by `puna keys`:"
            f" mv {data} {data}.corrupt"
        )
        yield fail("state", f"Redis cannot read {data}: {trouble.partition(' # ')[2] or trouble}", advice)


def inspect_limits() -> Iterator[Finding]:
    """Check the limits of this user."""
    yield assess_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield assess_sandbox(landlock_version())
    yield assess_filters(has_filters=has_filters())
    yield assess_users(is_root=os.geteuid() == 0, fault=separation_fault())


def inspect_certificates(directory: Path) -> Iterator[Finding]:
    """Check when the certificates of this machine end."""
    authority, now_unix_s = Authority(directory), time.time()
    for path in sorted(authority.directory.glob(f"**/{CERTIFICATE}")):
        try:
            facts = read_facts(read_trusted(path))
        except (OSError, BadCertificate) as error:
            yield fail("certificates", f"{path}: {error}", "issue it again: docs/security.md")
            continue
        yield assess_certificate(
            str(facts.name),
            ends=when(facts.valid_to_unix_s),
            is_late=facts.is_late(now_unix_s),
            has_ended=now_unix_s > facts.valid_to_unix_s,
            has_authority=authority.exists,
        )


def _files(source: ModelSource, manifests: ManifestStore, blobs: BlobStore) -> list[Path]:
    if source.trouble:
        raise BadModelFile(source.trouble)
    if source.stored is None:
        return [stamp.path for stamp in source.files]
    manifest = parse_manifest(manifests.read(source.stored) or b"")
    for layer in manifest.blobs():
        size = blobs.size(layer.digest)
        if size != layer.size_bytes:
            what = "is missing" if size is None else f"has {size} bytes, not {layer.size_bytes}"
            raise BadModelFile(f"its blob {layer.digest[:12]} {what}")
    return [blobs.path(layer.digest) for layer in manifest.layers if layer.media_type in _OF_ENGINE]


def _check(paths: list[Path]) -> dict[str, str]:
    """By path: the engine's reader's complaint. A file that ends the process is one of those it cannot read."""
    said: dict[str, str] = {}
    left = [str(path) for path in paths]
    while left:
        result = run_runner("self-test", "--files", within_s=_CHECK_WITHIN_S, stdin=json.dumps(left))
        said |= {str(one["path"]): str(one["trouble"]) for one in result.objects}
        left = [path for path in left if path not in said]
        if left:
            said[left.pop(0)] = f"reading it ends the reader ({result.last_line or result.exit_code})"
    return said


def inspect_ports(settings: CliSettings, record: ClusterRecord | None) -> Iterator[Finding]:
    """Both listeners: those of the running cluster, else those that `puna up` would take."""
    for name, text, variable, default, ours in (
        ("HTTP", settings.host, "PUNA_HOST", DEFAULT_PORT, record.http_address if record else None),
        ("gRPC", settings.grpc_host, "PUNA_GRPC_HOST", DEFAULT_GRPC_PORT, record.grpc_address if record else None),
    ):
        try:
            address = ours or listen_address(text, port=None, default_port=default)
        except ValueError as error:
            yield fail("ports", f"{variable}: {error}", "write host:port")
            continue
        if not _is_of_this_machine(split_host_port(address)[0]):
            yield skip("ports", f"{address} ({name}) is another machine's")
            continue
        taken = is_taken(address)
        yield assess_port(
            name=name,
            address=address,
            variable=variable,
            taken=taken,
            owner=_owner(split_host_port(address)[1]) if taken and not ours else "",
            is_ours=ours is not None,
            is_puna=taken and not ours and _is_puna(address),
        )


def _is_of_this_machine(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def _owner(port: int) -> str:
    """Name and process id, of processes that this user may see."""
    inodes: set[int] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            inodes.update(listening_inodes(Path(table).read_text(), port))
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                    return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _is_puna(address: str) -> bool:
    try:
        answer = httpx.get(f"http://{address}/api/version", timeout=_PORT_ANSWERS_WITHIN_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and "puna" in answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """Result of a child process. A negative `exit_code` is a signal, None a process that had to be killed."""

    exit_code: int | None
    objects: list[dict[str, Any]]  # JSON lines, or one document
    last_line: str  # of standard error


def run_runner(*words: str, within_s: float, stdin: str = "") -> ChildResult:
    """`python -m runner WORDS…`."""
    command = [sys.executable, "-m", "runner", *words]
    try:
        ended = subprocess.run(
            command, cwd=PACKAGES, input=stdin, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return ChildResult(exit_code=None, objects=[], last_line=f"no end within {within_s:.0f} s")
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return ChildResult(
        exit_code=ended.returncode, objects=_objects(ended.stdout), last_line=lines[-1].strip() if lines else ""
    )


def _objects(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # what follows was cut
    return found

"""Facts of the machine, its models, Redis and the server in, findings out; in the order of the report. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.core.doctor.findings import Finding, fail, ok, skip, warn
from cli.core.formatting import crash_text, format_bytes
from common.nearest import nearest
from common.redis.versions import is_vulnerable, server_version
from runner.core.devices.device_settings import IntegratedGpus

_NODE_ADVICE = {
    "suspect": "it is silent: look whether it and the network between are up",
    "probing": "its engine has not listed its devices yet; if that stays so, look at the host's log",
    "draining": "`puna undrain` puts it into use again",
    "drained": "`puna undrain` puts it into use again",
}
_KEEP_ADVICE = "`CONFIG SET appendonly yes`, or `save` lines in its configuration"
GIB = 1024**3
DISK_FAIL_BYTES = GIB
DISK_WARN_BYTES = 10 * GIB
LANDLOCK_NETWORK, LANDLOCK_SIGNALS = 4, 6  # the first versions with rules for TCP, and for signals
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


def assess_unknown(unknown: Iterable[str], known: frozenset[str]) -> Iterator[Finding]:
    """PUNA_ names that nothing reads: every process refuses to start with them."""
    for name in sorted(unknown):
        meant = nearest(name, known)
        advice = f"did you mean {meant}?" if meant else "unset it; docs/settings.md lists all names"
        yield fail("environment", f"unknown setting {name}", advice)


def assess_ollama(*, set_names: Iterable[str], counting: Mapping[str, str], known: frozenset[str]) -> Iterator[Finding]:
    """OLLAMA_ names. `counting`: the PUNA_ name that each one stands in for; `known`: those with an equivalent."""
    for name in sorted(set_names):
        if name in counting:
            yield ok("environment", f"{name} counts as {counting[name]}")
        elif name in known:
            yield ok("environment", f"{name} does not count: its PUNA_ name is set, or its value means nothing")
        else:
            yield warn("environment", f"{name} has no meaning here", "docs/settings.md says what there is instead")


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


def assess_open_files(hard: int) -> Finding:
    """Check the hard limit of open files, to which each service raises its own; a negative number means unlimited."""
    if hard < 0 or hard >= OPEN_FILES_WARN:
        return ok("limits", "open files: unlimited" if hard < 0 else f"open files: {hard}")
    advice = "each client is one: root can raise it (`ulimit -Hn 65536`, `LimitNOFILE=` of systemd)"
    return warn("limits", f"open files: {hard}", advice)


def assess_sandbox(version: int) -> Finding:
    """Check the kernel's means to confine processes; `version` is that of Landlock, 0 for none."""
    if version >= LANDLOCK_SIGNALS:
        return ok("limits", f"Landlock {version} confines runners and workers to the files that they need")
    lacking = "the network" if version < LANDLOCK_NETWORK else "signals"
    found = f"only Landlock {version}, without rules for {lacking}" if version else "no Landlock"
    harm = "read or reach more than it needs" if version < LANDLOCK_NETWORK else "end other processes of this user"
    text = f"the kernel has {found}: a hostile model file could make its runner {harm}"
    return warn("limits", text, "Linux 6.12 or later, with landlock among its modules (/sys/kernel/security/lsm)")


def assess_filters(*, has_filters: bool) -> Finding:
    """Check the kernel's means to refuse system calls to processes."""
    if has_filters:
        return ok("limits", "seccomp filters keep runners and workers from connections and new processes")
    text = "the kernel has no seccomp filters: a hostile model file could make its runner connect or start processes"
    return warn("limits", text, "a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64")


def assess_users(*, is_root: bool, fault: str) -> Finding:
    """Check whether each runner of a host of this user has a user of its own; `fault`: why it has not."""
    if not fault:
        return ok("limits", "runners of a host that this user starts have users of their own")
    if not is_root:
        return ok("limits", "runners of a host that this user starts share it")
    advice = "add the capabilities to the container, or start it as a user that is not root: docs/security.md"
    return warn("limits", f"runners of a host that this user starts share it: {fault}", advice)


def assess_certificate(role: str, *, ends: str, is_late: bool, has_ended: bool, has_authority: bool) -> Finding:
    """Check that a certificate is renewed; `has_authority`: that is done on this machine."""
    if not is_late:
        return ok("certificates", f"{role} is good until {ends}")
    advice = "look whether the cluster answers; to join again, add --token of `puna tokens create` there"
    if has_authority:
        advice = "`puna up --address` and `puna trust renew --watch` renew it: look whether one of them runs"
    if has_ended and not has_authority:
        return fail("certificates", f"{role} ended at {ends}", advice)
    return warn("certificates", f"{role} ends at {ends}, and was not renewed after half of its life", advice)


def assess_skew(whose: str, skew_s: float) -> Finding:
    """Check the difference between another clock and this one."""
    text = f"{whose} is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) < SKEW_WARN_S:
        return ok("clocks", f"{whose} agrees with this machine's")
    advice = "let both follow NTP; keys and certificates expire by the clock"
    return fail("clocks", text, advice) if abs(skew_s) >= SKEW_FAIL_S else warn("clocks", text, advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedModels:
    """A model directory that was looked at. `troubles`: by name, what is wrong with a model, or nothing.

    `renamed`: by name, the file that has another one. `answers` is False where the directory does not.
    """

    troubles: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    answers: bool = True

    @property
    def broken(self) -> Mapping[str, str]:
        """Return those with a trouble."""
        return {name: trouble for name, trouble in self.troubles.items() if trouble}


def assess_models(checked: CheckedModels, *, directory: str) -> Iterator[Finding]:
    """Yield one finding for the directory and one for each model that cannot be used, or has another name."""
    if not checked.answers:
        yield fail("models", f"{directory} does not answer", "look whether its disk or its network mount is there")
        return
    good = len(checked.troubles) - len(checked.broken)
    if good or not checked.broken:
        yield ok("models", f"{good} usable in {directory}" if good else f"none yet in {directory}")
    for name, file in sorted(checked.renamed.items()):
        if name not in checked.broken:
            yield ok("models", f"{file} is served as {name.removesuffix(':latest')}")
    for name, trouble in sorted(checked.broken.items()):
        yield _unusable(name, trouble)


def assess_listed(models: Iterable[Mapping[str, Any]], *, named: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding for each model that the server lists as unusable; those `named` are left out."""
    for model in models:
        if model.get("error") and model.get("name") not in named:
            yield _unusable(str(model.get("name")), str(model["error"]))


def _unusable(name: str, trouble: str) -> Finding:
    return fail("models", f"{name}: {trouble}", f"repair, rename or copy it again, or remove it: `puna rm {name}`")


def assess_redis(info: Mapping[str, Any], *, save: str | None) -> Iterator[Finding]:
    """Check the fields of INFO; `save` is that setting, None if the server does not report it."""
    yield ok("redis", f"it answers, {server_version(info)}")
    if is_vulnerable(info):
        yield warn("redis", "its clients can run code in it (CVE-2025-49844)", "update it to a patched version")
    if info.get("role") not in (None, "master"):
        yield fail("redis", f"it is a {info['role']}", "name the primary, or the sentinels that know it")
    policy, limit = info.get("maxmemory_policy"), int(info.get("maxmemory") or 0)
    if policy is not None and policy != "noeviction":
        advice = "`CONFIG SET maxmemory-policy noeviction`: it must refuse rather than evict the leader's lease"
        text = f"maxmemory-policy is {policy}"
        yield fail("redis", text, advice) if limit else warn("redis", f"{text}, though maxmemory is not set", advice)
    appends, snapshots = bool(int(info.get("aof_enabled") or 0)), bool(save)
    if not appends and save == "":
        yield warn(
            "redis", "it keeps nothing over a restart: what is wanted, pinned and drained is forgotten", _KEEP_ADVICE
        )
    elif appends or snapshots:
        yield ok("redis", f"it keeps its data: {'every write' if appends else 'snapshots'}")
    for name, what in (("aof_last_write_status", "append"), ("rdb_last_bgsave_status", "save")):
        if info.get(name) not in (None, "ok"):
            yield fail("redis", f"its last {what} failed", "look at its log, and at the room on its disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelAnswer:
    """Answer of one sentinel; only `trouble` is set if it did not answer."""

    address: str
    primary: str = ""
    quorum: int = 0
    trouble: str = ""


def assess_sentinels(answers: Sequence[SentinelAnswer], *, set_name: str) -> Iterator[Finding]:
    """Check that enough sentinels answer, and that all name the same primary."""
    heard = [answer for answer in answers if not answer.trouble]
    for answer in answers:
        if answer.trouble:
            yield warn("redis", f"sentinel {answer.address}: {answer.trouble}", "start it, or correct PUNA_REDIS_URL")
    primaries = sorted({answer.primary for answer in heard})
    quorum = max((answer.quorum for answer in heard), default=0)
    if not heard:
        yield fail("redis", "no sentinel answers", "start them, or correct PUNA_REDIS_URL")
    elif len(primaries) > 1:
        yield fail("redis", f"sentinels name different primaries: {', '.join(primaries)}", "wait for a failover to end")
    elif len(heard) < max(quorum, len(answers) // 2 + 1):
        text = f"{len(heard)} of {len(answers)} sentinels of {set_name} answer, too few to replace the primary"
        yield fail("redis", text, "start the others")
    else:
        yield ok("redis", f"{len(heard)} of {len(answers)} sentinels of {set_name} name {primaries[0]}")
    if len(answers) < 3:
        yield warn("redis", f"only {len(answers)} sentinels are named", "three survive the loss of one")


def assess_version(*, url: str, answer: Mapping[str, Any], own_version: str) -> Finding:
    """Compare the version of the server with that of this command."""
    version = answer.get("puna")
    if version is None:
        name = f"Ollama {answer['version']}" if "version" in answer else "something else than Puna"
        return fail("server", f"{name} answers at {url}", "set PUNA_HOST to a Puna, or stop what is there")
    if str(version).partition("+")[0] != own_version.partition("+")[0]:
        text = f"Puna {version} answers at {url}, this command is {own_version}"
        return warn("server", text, "bring both to one version")
    # Builds of one release are compatible; the row is for a user who looks for a difference.
    other = "" if version == own_version else f", this command is {own_version}"
    return ok("server", f"Puna {version} answers at {url}{other}")


def assess_readiness(status: int, answer: Mapping[str, Any]) -> Finding:
    """Report the answer of GET /readyz."""
    if status == 200 and answer.get("waits_for"):
        return warn("server", f"it takes requests, and waits for {answer['waits_for']}", "look at the cluster's logs")
    if status == 200:
        return ok("server", "it takes requests")
    state = answer.get("status")
    if state == "no_routes":
        return fail("server", "it has heard from no scheduler yet", "look at the scheduler's log, and at its Redis")
    if state == "draining":
        return warn("server", "it is shutting down", "wait for its successor")
    return fail("server", f"it is not ready (status {status})", "look at its log")


def assess_nodes(nodes: list[Mapping[str, Any]]) -> Iterator[Finding]:
    """Nodes and their devices as the scheduler sees them."""
    if not nodes:
        yield fail("nodes", "there is none", "start a host, and see that PUNA_DISCOVERY_ADDRESS names the discovery")
        return
    builds = {str(node.get("build")) for node in nodes if node.get("build")}
    if len(builds) > 1:
        advice = "install one build everywhere: models over several nodes need it"
        yield warn("nodes", f"engines differ: {', '.join(sorted(builds))}", advice)
    for node in nodes:
        name, state = node.get("id"), str(node.get("state"))
        if state in _NODE_ADVICE:
            yield warn("nodes", f"{name} is {state}", _NODE_ADVICE[state])
        else:
            devices = node.get("devices") or []
            yield ok("nodes", f"{name} is {state}, {len(devices)} device{'' if len(devices) == 1 else 's'}")
        yield from _devices(str(name), node.get("devices") or [])
        for runner in node.get("runners") or []:
            if runner.get("state") == "not_responding":
                advice = "its host ends it when it stays silent; look at that host's log if it does not"
                yield warn("nodes", f"{name}: the runner of {runner.get('model')} does not answer", advice)


def assess_crashes(nodes: list[Mapping[str, Any]], *, now_unix_s: float) -> Iterator[Finding]:
    """Judge the models whose replicas crash, by the nodes of GET /puna/v1/nodes."""
    serving = {runner.get("model") for node in nodes for runner in node.get("runners") or [] if _serves(runner)}
    for row in [row for node in nodes for row in node.get("crash_rows") or []]:
        model, node, error = row.get("model"), row.get("node"), row.get("error")
        text = f"{model} on {node} {crash_text(row, now_unix_s=now_unix_s)}: {error}"
        advice = f"look at its runner's log on the node; `puna load {model}` tries it at once"
        yield warn("models", text, advice) if model in serving else fail("models", text, advice)


def _serves(runner: Mapping[str, Any]) -> bool:
    return runner.get("state") in ("ready", "no_slots")


def _devices(node: str, devices: list[Mapping[str, Any]]) -> Iterator[Finding]:
    for device in devices:
        name, state, reason = f"{node}/{device.get('name')}", device.get("state"), device.get("state_reason") or ""
        if state == "lost":
            yield fail(
                "nodes", f"{name} is lost: {reason}", "look at its driver's log; it is used again when it is back"
            )
        elif state == "excluded" and device.get("check_last_line"):
            advice = f"repair it, then `puna devices clear {name}`"
            yield fail("nodes", f"{name} is left out: {reason}: {device['check_last_line']}", advice)
        elif state == "excluded":
            yield ok("nodes", f"{name} is left out: {reason}")
        elif state == "suspect":
            yield warn("nodes", f"{name} is suspect: {reason}", "it is tested again by itself")
        elif device.get("trust") == "stale":
            yield warn("nodes", f"{name}: its figures are old", "look at the host's log")

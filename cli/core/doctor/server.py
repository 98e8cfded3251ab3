"""The server and its nodes. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from cli.core.doctor.findings import Finding, fail, ok, warn
from cli.core.formatting import crash_text

_NODE_ADVICE = {
    "suspect": "it is silent: look whether it and the network between are up",
    "probing": "its engine has not listed its devices yet; if that stays so, look at the host's log",
    "draining": "`puna undrain` puts it into use again",
    "drained": "`puna undrain` puts it into use again",
}


def assess_version(*, url: str, answer: Mapping[str, Any], own_version: str) -> Finding:
    """Compare the version of the server with that of this command."""
    version = answer.get("puna")
    if version is None:
        name = f"Ollama {answer['version']}" if "version" in answer else "something else than Puna"
        return fail("server", f"{name} answers at {url}", "set PUNA_HOST to a Puna, or stop what is there")
    if str(version).partition("+")[0] != own_version.partition("+")[0]:
        text = f"Puna {version} answers at {url}, this command is {own_version}"
        return warn("server", text, "bring both to one version")
    # Another build of the same release speaks the same language; who looks for a difference sees it.
    other = "" if version == own_version else f", this command is {own_version}"
    return ok("server", f"Puna {version} answers at {url}{other}")


def assess_readiness(status: int, answer: Mapping[str, Any]) -> Finding:
    """Report the answer of GET /readyz."""
    if status == 200 and answer.get("waits_for"):
        return warn("server", f"it takes requests, and waits for {answer['waits_for']}", "look at the hosts' logs")
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

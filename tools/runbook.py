"""The catalogue of faults, and docs/runbook.md written from it: `python -m tools.runbook [--check]`.

One row for each fault: how it is made or comes about, what shows it, the alerts that fire, and what to do. Tests hold
that alerts, metrics and commands of the rows exist.
"""

import sys
from dataclasses import dataclass

from tools.generated import ROOT, write_or_check

DOCUMENT = ROOT / "docs" / "runbook.md"
_HEAD = """# Runbook

What each fault looks like, and what to do. Look up the alert or the symptom, then follow the last column. Alerts are
explained in [metrics.md](metrics.md), errors in [troubleshooting.md](troubleshooting.md), exercises in
[operators.md](operators.md#exercises).

First, in any case: `puna doctor` names what is wrong on this machine and in the cluster, `puna nodes` shows nodes,
devices and replicas, `puna top` what is going on. The column *made by* says how to see the fault in an exercise.

This page is generated: `python -m tools.runbook`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `made_by` empty: no command makes it. `alerts` empty: the cluster deals with it alone."""

    area: str
    name: str
    made_by: str = ""
    seen: str
    alerts: tuple[str, ...] = ()
    action: str


FAULTS = (
    Fault(
        area="Runners",
        name="a runner dies",
        made_by="`puna chaos kill MODEL --yes`",
        seen="`puna_scheduler_replicas_lost_total`, `puna_gateway_resumes_total`; `puna ps`: a new replica",
        alerts=("PunaReplicasCrash", "PunaStreamsNotResumed"),
        action="Once: nothing, answers go on elsewhere. Again: the last error is in `puna ps` and `puna doctor`.",
    ),
    Fault(
        area="Runners",
        name="a model crashes again and again on a node",
        seen="`puna_scheduler_crashes_in_a_row`; `puna doctor`: the count, the next try, the engine's last error",
        alerts=("PunaModelCrashesInARow", "PunaReplicasCrash"),
        action="Read the last error; reduce the context or replace the file; then `puna load MODEL` tries at once.",
    ),
    Fault(
        area="Runners",
        name="a runner is stopped or starved",
        made_by="`puna chaos stop MODEL --yes`",
        seen="`puna_gateway_replicas`: one `ready` less; `puna ps` drops it after 2 s, `puna nodes` counts it as "
        "silent, `puna doctor` names it; its host kills it after 10 s (`runner.hung` in the log)",
        alerts=("PunaReplicasCrash",),
        action="Nothing: the host kills it. Again: look for memory pressure and other processes on the node.",
    ),
    Fault(
        area="Runners",
        name="the engine thread hangs, for example in a GPU driver",
        made_by="`puna chaos block MODEL --yes`",
        seen="`puna_host_runner_ends_total`, `puna_host_device_state`; `puna nodes`: the device is suspect; a step "
        "that does not end is killed after 10 s, without a device after 60 s; a blocked idle thread after 10 s",
        alerts=("PunaReplicasCrash", "PunaDeviceExcluded"),
        action="Read the kernel log for Xid errors; after the repair `puna devices clear NODE/DEVICE`.",
    ),
    Fault(
        area="Runners",
        name="a request kills the runners that serve it",
        seen="`puna_gateway_quarantined_requests_total`; clients get `request_quarantined`",
        alerts=("PunaReplicasCrash",),
        action="Find the client by the request's id in the gateway's log; report the request as a bug of the engine.",
    ),
    Fault(
        area="Runners",
        name="a load fails: memory, file or engine",
        seen="`puna_scheduler_loads_total`, `puna_scheduler_refusals_total`; `puna explain MODEL` with the figures",
        alerts=("PunaLoadsFail",),
        action="Do what `puna explain MODEL` says: free memory, a smaller context, another file.",
    ),
    Fault(
        area="Devices",
        name="another process takes a device's memory",
        made_by="`puna chaos memory DEVICE --yes`",
        seen="`puna_host_device_free_bytes`; `puna nodes`: free memory; loads go elsewhere or are refused",
        alerts=("PunaLoadsFail", "PunaPredictionOff"),
        action="Stop the process, or reserve memory: `PUNA_DEVICE_MAX_BYTES`.",
    ),
    Fault(
        area="Devices",
        name="a device is lost",
        seen="`puna_discovery_device_state`, `puna_discovery_device_errors`; `puna doctor`",
        alerts=("PunaDeviceLost", "PunaDeviceErrors"),
        action="Read the driver's log, reset the card or reboot; the device is used again when it is back.",
    ),
    Fault(
        area="Devices",
        name="a device fails its test, or its runners end with errors of it",
        seen="`puna_discovery_device_state`; `puna doctor`: left out, with the reason",
        alerts=("PunaDeviceExcluded",),
        action="Repair it, then `puna devices clear NODE/DEVICE`.",
    ),
    Fault(
        area="Devices",
        name="the driver does not answer",
        seen="`puna_discovery_device_free_age_seconds`; nothing new is placed there, replicas stay",
        alerts=("PunaDeviceFiguresOld",),
        action="Look at the host's log; if `nvidia-smi` hangs as well, drain the node and reboot it.",
    ),
    Fault(
        area="Devices",
        name="more is promised than a device has, or models take more than planned",
        seen="`puna_scheduler_promised_bytes`, `puna_scheduler_residual_bytes`",
        alerts=("PunaDeviceOverPromised", "PunaPredictionOff"),
        action="Report it with `puna explain MODEL`; until then `PUNA_DEVICE_MAX_BYTES` leaves room.",
    ),
    Fault(
        area="Nodes",
        name="a host process dies",
        made_by="`puna chaos kill host --yes`",
        seen="`puna_discovery_nodes`; its runners go on, the next host adopts them",
        alerts=("PunaNodeGone", "PunaTargetDown"),
        action="Nothing where it is supervised; else start the host again.",
    ),
    Fault(
        area="Nodes",
        name="a host process is stopped",
        made_by="`puna chaos stop host --yes`",
        seen="`puna_discovery_nodes`; `puna nodes`: `suspect` after 2 s, gone after 8 s",
        alerts=("PunaNodeGone", "PunaTargetDown"),
        action="Resume or restart it; its runners go on meanwhile.",
    ),
    Fault(
        area="Nodes",
        name="a node reboots, loses its power or its network",
        seen="`puna_discovery_nodes`, `puna_scheduler_replicas_lost_total`; models are placed on other nodes",
        alerts=("PunaNodeGone", "PunaReplicasCrash"),
        action="Repair it; it registers again by itself. For planned work: `puna drain NODE` before.",
    ),
    Fault(
        area="Nodes",
        name="the disk is full",
        made_by="`puna chaos disk models --yes`",
        seen="`puna_host_store_free_bytes`; pulls are refused with `disk_full`, answers go on; `puna doctor`",
        alerts=("PunaDiskFull",),
        action="Remove models with `puna rm`, or other files on that disk.",
    ),
    Fault(
        area="Nodes",
        name="the log cannot be written",
        seen="`puna_log_lines_dropped_total`; serving goes on",
        alerts=("PunaLogLinesDropped",),
        action="Free the disk, or restart what reads the pipe.",
    ),
    Fault(
        area="Nodes",
        name="a certificate is not renewed, a clock is wrong",
        made_by="`puna chaos clock gateway --yes`",
        seen="`puna_certificate_renewal_late`; `puna doctor`: certificates, clocks",
        alerts=("PunaCertificateNotRenewed",),
        action="Let `puna trust renew --watch` run, and clocks follow NTP.",
    ),
    Fault(
        area="Nodes",
        name="the network between nodes, or to the control processes, is cut",
        made_by="`puna chaos cut NODE --yes`, `puna chaos slow NODE --yes`",
        seen="`puna_discovery_node_report_age_seconds`, `puna_host_discovery_connected`; answers go on elsewhere",
        alerts=("PunaNodeGone", "PunaStreamsNotResumed"),
        action="Repair the network; everything reconnects within 5 s. Replicas on both sides stay until one is idle.",
    ),
    Fault(
        area="Nodes",
        name="a second host speaks for a node, or a node registers again and again",
        seen="`puna_discovery_reports_total` with `refused`; the host's log: a newer process speaks for this node",
        alerts=("PunaReportsRefused",),
        action="Stop one of the two hosts; a copied home directory needs a node id of its own.",
    ),
    Fault(
        area="Nodes",
        name="a model file is damaged or hostile",
        seen="`puna_host_models` by `state`; `puna models` and `puna doctor` with the reason; it is never loaded",
        alerts=("PunaModelUnusable",),
        action="Pull it again (`puna pull`), or remove it (`puna rm`).",
    ),
    Fault(
        area="Nodes",
        name="a process leaks memory or descriptors, or the kernel kills it for memory",
        seen="`process_resident_memory_bytes`, `process_open_fds`; `puna ps`: the end of the runner with its cause",
        alerts=("PunaReplicasCrash", "PunaTargetDown"),
        action="Restart it; raise `ulimit -n` where `puna doctor` warns; report growth with the two figures.",
    ),
    Fault(
        area="Control",
        name="versions differ, or a configuration is wrong",
        seen="`puna_build_info`; `puna doctor`: engines differ, unknown settings",
        alerts=("PunaVersionsDiffer",),
        action="Finish the upgrade as docs/upgrade.md says; correct the setting.",
    ),
    Fault(
        area="Control",
        name="the scheduler dies",
        made_by="`puna chaos kill scheduler --yes`",
        seen="`puna_scheduler_leader`, `puna_gateway_routes_connected`; warm models answer, loads wait",
        alerts=("PunaNoLeader", "PunaRoutesLost", "PunaTargetDown"),
        action="Nothing where it is supervised or a standby leads; else start it again.",
    ),
    Fault(
        area="Control",
        name="the scheduler is stopped",
        made_by="`puna chaos stop scheduler --yes`",
        seen="`puna_gateway_routes_connected`; loads and lists fail within 2 s, warm models answer",
        alerts=("PunaRoutesLost", "PunaNoLeader", "PunaTargetDown"),
        action="Resume or restart it. A standby leads after 5 s; the old leader's commands are refused.",
    ),
    Fault(
        area="Control",
        name="two schedulers believe that they lead",
        seen="`puna_scheduler_leader`, `puna_scheduler_fence`; hosts obey the higher fence only",
        alerts=("PunaTwoLeaders",),
        action="Nothing for seconds; longer: do all schedulers use one Redis? (`PUNA_REDIS_URL`)",
    ),
    Fault(
        area="Control",
        name="discovery dies or is stopped",
        made_by="`puna chaos stop discovery --yes`",
        seen="`puna_scheduler_inventory_connected`; decisions are made on the last inventory, nothing is evicted",
        alerts=("PunaInventoryStale", "PunaTargetDown"),
        action="Start it again; the inventory is complete within 2 s.",
    ),
    Fault(
        area="Control",
        name="Redis is away",
        made_by="`puna chaos stop redis --yes`",
        seen="`puna_scheduler_store_up`, `puna_gateway_key_store_up`; loads fail, warm models answer",
        alerts=("PunaStoreDown", "PunaNoLeader", "PunaKeyStoreDown"),
        action="Repair it; nothing has to be restored, hosts tell what runs.",
    ),
    Fault(
        area="Control",
        name="Redis comes back empty, or has lost its last writes",
        seen="`puna_scheduler_leadership_changes_total`; runners stay, the leader writes back what it knows",
        action="Nothing if the leader lived on. Else restore Redis, or set aliases, pins and keys of the API again.",
    ),
    Fault(
        area="Control",
        name="a metrics page does not answer",
        seen="`up` is 0 for the process",
        alerts=("PunaTargetDown",),
        action="`puna doctor` on that machine: see whether the process lives and Prometheus reaches its port.",
    ),
    Fault(
        area="Requests",
        name="a gateway dies or is stopped",
        made_by="`puna chaos kill gateway --yes`",
        seen="`up` is 0 for it, `/readyz` does not answer, `puna doctor`: broke off; its own connections break "
        "or stand; `puna_gateway_requests_total` of others goes on",
        alerts=("PunaTargetDown",),
        action="Dead: nothing where it is supervised. Stopped: resume or restart it. Clients connect again.",
    ),
    Fault(
        area="Requests",
        name="more requests than the cluster can serve",
        seen="`puna_gateway_queue_depth`, `puna_gateway_queue_oldest_seconds`; clients get 503 with `Retry-After`",
        alerts=("PunaQueueFull", "PunaQueueSlow", "PunaFirstTokenSlow"),
        action="Add replicas (`puna placements MODEL replicas_max=2`) or nodes, or limit the keys that ask most.",
    ),
    Fault(
        area="Requests",
        name="models push each other out of memory",
        seen="`puna_scheduler_evictions_total`; first tokens come late",
        alerts=("PunaEvictionStorm", "PunaFirstTokenSlow"),
        action="Pin what matters (`puna placements MODEL pinned=true`), remove what does not, or add memory.",
    ),
    Fault(
        area="Requests",
        name="an event loop is blocked, or the machine has no processor time",
        seen="`puna_event_loop_lag_seconds`; large bodies are refused first",
        alerts=("PunaEventLoopSlow", "PunaNodeSilent"),
        action="Look for other processes on the machine; give the service its own processors.",
    ),
    Fault(
        area="Requests",
        name="answers end with errors",
        seen="`puna_gateway_requests_total` by `outcome`; the gateway's log by request id",
        alerts=("PunaErrorsHigh", "PunaStreamsNotResumed"),
        action="Look the outcome up in docs/troubleshooting.md.",
    ),
    Fault(
        area="Requests",
        name="a client leaves, reads slowly or sends nothing",
        seen="`puna_gateway_requests_total` with the outcome `canceled`; the slot is free within one step",
        action="Nothing: the stream is cancelled, a slow reader after 15 to 30 s.",
    ),
)


def page() -> str:
    """Return the page."""
    lines = [_HEAD]
    for area in dict.fromkeys(fault.area for fault in FAULTS):
        lines += [f"## {area}", "", "| fault | made by | seen | alerts | what to do |", "|---|---|---|---|---|"]
        lines += [_row(fault) for fault in FAULTS if fault.area == area]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(fault: Fault) -> str:
    alerts = ", ".join(f"[{name}](metrics.md#{name.lower()})" for name in fault.alerts) or "–"
    cells = (fault.name, fault.made_by or "–", fault.seen, alerts, fault.action)
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    return write_or_check({DOCUMENT: page()}, arguments, tool="runbook")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Faults for exercises: those of nodes through a gateway, those of this machine's services and links here."""

import ipaddress
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.cluster.home import is_locked, read_record, real_home
from cli.errors import CommandFailed, ExitCode
from cli.server import Server
from common.network import split_host_port
from common.process_faults import InjectedFault, Killed, LinkBroken, ProcessFault, Stopped
from common.wrong_clock import SKEW_S_MAX, ClockWrong

SERVICES = ("redis", "discovery", "host", "scheduler", "gateway")
_PATH = "/puna/v1/chaos"
_HAPPENS_WITHIN_S = 5.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One fault as a user asks for it."""

    fault: str
    target: str
    node: str
    duration_s: float
    leave_bytes: int
    rate_bytes_s: int = 0
    skew_s: int = 0

    def body(self, *, node: str = "", target: str = "") -> dict[str, Any]:
        """Return the body of the request to a gateway."""
        return {
            "fault": self.fault,
            "node": node,
            "target": target or self.target,
            "duration_s": self.duration_s,
            "leave_bytes": self.leave_bytes,
        }


def carry_out(server: Server, order: Order, *, home: Path, say: Callable[[str], None]) -> None:
    """Make the fault, and return when it has ended.

    Raises:
        CommandFailed: nothing was broken; or it was interrupted, and has ended.
    """
    try:
        if order.fault == "clock" or (order.fault in ("kill", "stop") and order.target in SERVICES):
            _break_service(server, order, home, say)
        elif order.fault in ("cut", "slow"):
            _break_link(server, order, say)
        else:
            _break_node(server, order, say)
    except KeyboardInterrupt:
        raise CommandFailed("interrupted; the fault has ended", ExitCode.INTERRUPTED) from None


def _break_node(server: Server, order: Order, say: Callable[[str], None]) -> None:
    node, target = _find(server, order)
    with closing(server.stream(_PATH, order.body(node=node, target=target))) as news:
        for line in news:
            if line.get("status") == "injected":
                _say_begun(order, f"{node}: {line.get('text')}", say)
            elif line.get("status") == "ended" and order.fault != "kill":
                say("it has ended")


def _find(server: Server, order: Order) -> tuple[str, str]:
    """Return the node and what is broken there.

    Raises:
        CommandFailed: there is no such target, or it is not clear which is meant.
    """
    nodes = [one for one in server.get("/puna/v1/nodes").get("nodes") or [] if order.node in ("", one["id"])]
    if not nodes:
        raise CommandFailed(f"there is no node {order.node!r}; see `puna nodes`", ExitCode.NOT_FOUND)
    match order.fault:
        case "disk":
            found = [(one["id"], order.target) for one in nodes]
        case "memory":
            found = [
                (one["id"], device["id"])
                for one in nodes
                for device in one.get("devices") or []
                if order.target in (device["id"], device.get("name"))
            ]
        case _:
            found = [
                (one["id"], runner["placement"])
                for one in nodes
                for runner in sorted(one.get("runners") or [], key=lambda runner: -runner["slots_busy"])
                if order.target in (runner["placement"], runner["model"], runner["model"].removesuffix(":latest"))
                and runner["state"] in ("ready", "no_slots")
            ][:1]
    if not found:
        raise CommandFailed(f"there is no {order.target!r} that this could hit; see `puna nodes`", ExitCode.NOT_FOUND)
    if len(found) > 1:
        names = ", ".join(node for node, _ in found)
        raise CommandFailed(f"say which node is meant with --node: {names}", ExitCode.USAGE)
    return found[0]


def _break_service(server: Server, order: Order, home: Path, say: Callable[[str], None]) -> None:
    """Break a process of this machine's cluster."""
    if order.fault == "clock" and not 0 < abs(order.skew_s) <= SKEW_S_MAX:
        raise CommandFailed("--by is a second at least, and 68 years at most", ExitCode.USAGE)
    real = real_home(home)
    record = read_record(real)
    pid = record.services[order.target].pid if record is not None and order.target in record.services else None
    if pid is None or not is_locked(real):
        raise CommandFailed(f"no {order.target} runs in {real}; for that of another home: --home", ExitCode.NOT_FOUND)
    found: dict[str, tuple[ProcessFault, str]] = {
        "kill": (Killed(pid), "is killed"),
        "stop": (Stopped(pid), "is stopped"),
        "clock": (ClockWrong(pid, order.skew_s), f"has a clock that is off by {order.skew_s} s"),
    }
    fault, done = found[order.fault]
    _break_here(server, order, fault, f"{order.target} (pid {pid})", done, say)


def _break_link(server: Server, order: Order, say: Callable[[str], None]) -> None:
    """Drop packets between this machine and another one."""
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        raise CommandFailed(f"{order.fault} needs root and iptables on this machine")
    try:
        address = ipaddress.ip_address(order.target)
    except ValueError:
        address = _address_of(server, order.target)
    if address.is_loopback:
        raise CommandFailed(f"{order.target} is on this machine", ExitCode.USAGE)
    slow = order.fault == "slow"
    done = f"lets {order.rate_bytes_s} bytes/s pass each way" if slow else "is cut"
    fault = LinkBroken(str(address), bytes_s=max(1, order.rate_bytes_s) if slow else 0)
    _break_here(server, order, fault, f"the link to {address}", done, say)


def _address_of(server: Server, node: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = [one["address"] for one in server.get("/puna/v1/nodes").get("nodes") or [] if one["id"] == node]
    try:
        return ipaddress.ip_address(socket.gethostbyname(split_host_port(found[0])[0]))
    except (IndexError, ValueError, OSError) as error:
        raise CommandFailed(f"{node!r} is no address, and no node on another machine", ExitCode.NOT_FOUND) from error


def _break_here(
    server: Server, order: Order, fault: InjectedFault, name: str, done: str, say: Callable[[str], None]
) -> None:
    """Break something of this machine, once a gateway of its cluster has allowed and recorded that."""
    with closing(server.stream(_PATH, order.body())) as news:
        for _ in news:
            pass
    try:
        fault.inject()
        deadline_s = time.monotonic() + _HAPPENS_WITHIN_S
        while not fault.has_happened():
            if time.monotonic() > deadline_s:
                raise CommandFailed(f"{name} goes on; nothing was broken")
            time.sleep(_LOOK_S)
        _say_begun(order, f"{name} {done}", say)
        if order.fault != "kill":
            time.sleep(order.duration_s)
    except OSError as error:
        raise CommandFailed(f"{name}: {error.strerror or error}") from error
    finally:
        fault.heal()
    if order.fault != "kill":
        say("it has ended")


def _say_begun(order: Order, text: str, say: Callable[[str], None]) -> None:
    say(text if order.fault == "kill" else f"{text}, for {order.duration_s:g} s; Ctrl-C ends it")

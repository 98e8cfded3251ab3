"""Are the ports of `puna up` free, or whose are they."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx

from cli.cluster.state_file import ClusterRecord
from cli.core.doctor.assessments import assess_port
from cli.core.doctor.findings import Finding, fail, skip
from cli.core.server_address import DEFAULT_GRPC_PORT, DEFAULT_PORT, listen_address
from cli.settings import CliSettings
from common.network import is_taken, split_host_port

_ANSWER_WITHIN_S = 2.0
_LISTEN = "0A"


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


def listening_inodes(table: str, port: int) -> Iterator[int]:
    """Inodes of the sockets that listen on a port, from the text of /proc/net/tcp or tcp6."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            yield int(fields[9])


def _is_puna(address: str) -> bool:
    try:
        answer = httpx.get(f"http://{address}/api/version", timeout=_ANSWER_WITHIN_S, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and "puna" in answer

"""Roles of the cluster's processes, and their names in certificates. Pure."""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

URI_SCHEME = "puna://"
_DOMAIN = "puna.internal"
_ID = "[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
ID_PATTERN = re.compile(_ID)


class Role(StrEnum):
    """Kind of a process, or of a person's tools."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    DISCOVERY = "discovery"
    NODE = "node"
    RUNNER = "runner"
    OPERATOR = "operator"
    METRICS = "metrics"


# Roles of which each holder has an id: that of the node, for a runner with that of its placement.
_IDS = {
    Role.NODE: (ID_PATTERN, "an id of letters, digits, dots, dashes and underscores: node/ID"),
    Role.RUNNER: (
        re.compile(f"{_ID}/[A-Za-z0-9-]{{1,64}}"),
        "the ids of its node and placement: runner/NODE/PLACEMENT",
    ),
}


@dataclass(frozen=True, slots=True)
class RoleName:
    """A role, and the id of its holder where the role has ids: `gateway`, `node/a`, `runner/a/PLACEMENT`."""

    role: Role
    id: str = ""

    def __str__(self) -> str:
        """Return the name as commands take it."""
        return f"{self.role}/{self.id}" if self.id else self.role.value

    @property
    def node_id(self) -> str:
        """The node that a node or a runner is; empty for other roles."""
        return self.id.partition("/")[0]

    @property
    def uri(self) -> str:
        """The name in a certificate."""
        return f"{URI_SCHEME}{runner_domain(self.node_id)}/{self.id}" if self._is_runner else f"{URI_SCHEME}{self}"

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names that TLS compares: that of this holder, and that of every holder of the role but of runners."""
        if self._is_runner:
            return (f"{self.id.rpartition('/')[2]}.{runner_domain(self.node_id)}",)
        every = f"{self.role}.{_DOMAIN}"
        return (f"{self.id}.{every}", every) if self.id else (every,)

    @property
    def _is_runner(self) -> bool:
        return self.role is Role.RUNNER


def runner_domain(node_id: str) -> str:
    """Return the domain of the runners of one node, to which the certificate of the node confines those that it issues.

    A digest, because constraints of names include subdomains and ignore case, and ids have dots and capitals.
    """
    return f"{hashlib.sha256(node_id.encode()).hexdigest()[:40]}.{Role.RUNNER}.{_DOMAIN}"


def runner_peer(node_id: str, placement_id: str) -> str:
    """Return the role of one runner, as `open_channel` takes it."""
    return f"{Role.RUNNER}/{node_id}/{placement_id}"


def parse_role(text: str) -> RoleName:
    """Parse `gateway` or `node/a`.

    Raises:
        ValueError: no such role, or an id too many, missing or malformed.
    """
    role, _, holder = text.partition("/")
    if role not in list(Role):
        raise ValueError(f"no role {role!r}; roles are {', '.join(Role)}")
    pattern, wanted = _IDS.get(Role(role), (None, ""))
    if pattern is not None and not pattern.fullmatch(holder):
        raise ValueError(f"{role} needs {wanted}")
    if pattern is None and "/" in text:
        raise ValueError(f"{role} has no id")
    return RoleName(Role(role), holder)


def parse_uri(uri: str) -> RoleName:
    """Parse the name in a certificate.

    Raises:
        ValueError: it names no role, or a runner under the domain of another node.
    """
    text = uri.removeprefix(URI_SCHEME)
    host, _, path = text.partition("/")
    name = parse_role(f"{Role.RUNNER}/{path}" if "." in host else text)
    if name.uri != uri:
        raise ValueError(f"{uri} is not the URI of {name}")
    return name


def host_name_of(peer: str) -> str:
    """Return the name that the certificate of `peer` must have: `node/a` is that node, `node` is any node."""
    role, _, holder = peer.partition("/")
    return RoleName(Role(role), holder).host_names[0]

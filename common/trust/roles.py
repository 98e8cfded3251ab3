"""Roles of the cluster's processes, and their names in certificates. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum

URI_SCHEME = "puna://"
_DOMAIN = "puna.internal"
ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Role(StrEnum):
    """Kind of a process, or of a person's tools."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    DISCOVERY = "discovery"
    NODE = "node"
    RUNNER = "runner"
    OPERATOR = "operator"
    METRICS = "metrics"


# Roles of which each holder has an id: that of the node, or of the placement.
WITH_ID = frozenset({Role.NODE, Role.RUNNER})


@dataclass(frozen=True, slots=True)
class RoleName:
    """A role, and the id of its holder where the role has ids: `gateway`, `node/a`."""

    role: Role
    id: str = ""

    def __str__(self) -> str:
        """Return the name as commands take it."""
        return f"{self.role}/{self.id}" if self.id else self.role.value

    @property
    def uri(self) -> str:
        """The name in a certificate."""
        return f"{URI_SCHEME}{self}"

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names that TLS compares: that of this holder, and that of every holder of the role."""
        every = f"{self.role}.{_DOMAIN}"
        return (f"{self.id}.{every}", every) if self.id else (every,)


def parse_role(text: str) -> RoleName:
    """Parse `gateway` or `node/a`.

    Raises:
        ValueError: no such role, or an id too many, missing or malformed.
    """
    role, _, holder = text.partition("/")
    if role not in list(Role):
        raise ValueError(f"no role {role!r}; roles are {', '.join(Role)}")
    if Role(role) in WITH_ID and not ID_PATTERN.fullmatch(holder):
        raise ValueError(f"{role} needs an id of letters, digits, dots, dashes and underscores: {role}/ID")
    if Role(role) not in WITH_ID and "/" in text:
        raise ValueError(f"{role} has no id")
    return RoleName(Role(role), holder)


def host_name_of(peer: str) -> str:
    """Return the name that the certificate of `peer` must have: `node/a` is that node, `node` is any node."""
    role, _, holder = peer.partition("/")
    return RoleName(Role(role), holder).host_names[0]

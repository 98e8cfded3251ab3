"""Certificates of a cluster for tests, and processes that show them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.trust.authority import Authority
from common.trust.certificates import issue
from common.trust.identity import HeldIdentity, Identity, IdentitySource, own_identity, use_identity
from common.trust.roles import parse_role, runner_peer


class Cluster:
    """One authority. `clock_ahead_s` is how far its clock is ahead of that of this machine."""

    def __init__(self, directory: Path, *, clock_ahead_s: float = 0.0) -> None:
        self._clock = lambda: time.time() + clock_ahead_s
        self.authority = Authority(directory, wall_unix_s=self._clock)
        if not (directory / "ca").exists():
            self.authority.create()

    def directory(self, role: str, *, life_s: float = 3600.0) -> Path:
        """Issue a certificate, and return what PUNA_TRUST names."""
        return self.authority.issue(parse_role(role), life_s=life_s)

    def runner_identity(self, node_id: str, placement_id: str) -> HeldIdentity:
        """Issue the certificate of a runner, as its host does."""
        node = self.identity(f"node/{node_id}").material()
        name = parse_role(runner_peer(node_id, placement_id))
        return HeldIdentity(node.authorities, issue(node.pair, name, now_unix_s=time.time()))

    def identity(self, role: str, *, life_s: float = 3600.0) -> Identity:
        """Issue a certificate, and read it by the clock of the authority."""
        return Identity(self.directory(role, life_s=life_s), wall_unix_s=self._clock)


@contextmanager
def acting_as(identity: IdentitySource | None) -> Iterator[None]:
    """Open channels and servers as a process of this identity does."""
    before = own_identity()
    use_identity(identity)
    try:
        yield
    finally:
        use_identity(before)

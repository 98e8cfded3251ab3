"""Certificates for nodes on other machines: for a token at first, later for the certificate before.

DIRECTORY/joined/ID.crt          the newest certificate of each; its key never was here
"""

import hashlib
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.audit.acts import Act
from common.errors import InvalidRequest, PermissionDenied, Unauthenticated
from common.ids import random_id
from common.startup_error import StartupError
from common.trust.authority import Authority, locked, write_private
from common.trust.certificates import BadCertificate, Facts, read_facts
from common.trust.identity import read_trusted
from common.trust.requests import read_request
from common.trust.roles import ID_PATTERN, Role, RoleName
from common.trust.tokens import JoinTokens, TokenRecord

_DIRECTORY, _SUFFIX = "joined", ".crt"
_ANOTHER = "`puna tokens create` on the machine with the authority makes another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A machine's request to join. `node_id`: the one that it asks for; `request`: its signing request, PEM."""

    token_id: str
    secret: str
    request: bytes
    node_id: str = ""
    address: str = ""  # of the machine, for the audit log


class Admission:
    """Issues certificates for keys of other machines. Blocks while it reads and writes files."""

    def __init__(
        self,
        authority: Authority,
        *,
        refuses: Callable[[Facts], bool] = lambda _: False,
        wall_unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`refuses`: certificates of nodes that were removed; their ids are free."""
        self.authority = authority
        self._refuses = refuses
        self.tokens = JoinTokens(authority, wall_unix_s=wall_unix_s)
        self._wall_unix_s = wall_unix_s

    def admit(self, application: Application, *, registered: Collection[str]) -> tuple[RoleName, bytes]:
        """Use a token up, and return the name and certificate of a new node. `registered`: ids of nodes that run.

        The same application passes again while the token is good: its sender may not have received the answer.

        Raises:
            Unauthenticated: the token is not good; nothing was changed.
            PermissionDenied: the node exists, or the token is for another one; nothing was changed.
            InvalidRequest: as `read_request`, or the id cannot be one.
            StartupError: the files of the authority cannot be used.
        """
        key = _key_of(application.request)
        der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        key_hash = hashlib.sha256(der).hexdigest()
        with ExitStack() as acts, self.tokens.changing() as records:
            record = self._good(records.get(application.token_id), application.secret, key_hash)
            name = RoleName(Role.NODE, record.used_by or self._chosen_id(record, application.node_id))
            if not record.used_by:
                self._check_free(name.id, registered)
            act = self.authority.acts.act(Act.NODE_ADMIT, object=name.id, token=record.id, address=application.address)
            acts.enter_context(act)  # ends once the records are written
            certificate = self.authority.certify(name, key)
            records[record.id] = replace(record, used_by=name.id, used_key=key_hash)
        self._keep(name, certificate)
        return name, certificate

    def renew(self, before: Facts, request: bytes, *, address: str = "") -> bytes:
        """Return another certificate for the node of one, for as long as that was good. `address`: of its machine.

        Raises:
            InvalidRequest, StartupError: as `admit`.
        """
        key = _key_of(request)
        with self.authority.acts.act(Act.NODE_RENEW, object=before.name.id, address=address):
            with locked(self.authority.directory):
                certificate = self.authority.certify(before.name, key, life_s=before.life_s)
            self._keep(before.name, certificate)
        return certificate

    def joined(self) -> list[Facts]:
        """List the certificates of nodes on other machines.

        Raises:
            StartupError: one of them cannot be read.
        """
        paths = sorted((self.authority.directory / _DIRECTORY).glob(f"*{_SUFFIX}"))
        return [_read(path) for path in paths]

    def _good(self, record: TokenRecord | None, secret: str, key_hash: str) -> TokenRecord:
        if record is None or not record.admits(secret):
            raise Unauthenticated(f"the token is unknown or was revoked; {_ANOTHER}")
        if record.expires_unix_s <= self._wall_unix_s():
            raise Unauthenticated(f"the token has expired; {_ANOTHER}")
        if record.used_by and record.used_key != key_hash:
            raise Unauthenticated(f"the token was used, by node {record.used_by}; {_ANOTHER}")
        return record

    def _chosen_id(self, record: TokenRecord, wanted: str) -> str:
        if record.node and wanted not in ("", record.node):
            raise PermissionDenied(f"the token is for node {record.node}; set PUNA_NODE_ID={record.node}")
        chosen = record.node or wanted or random_id("node-", 10)
        if not ID_PATTERN.fullmatch(chosen):
            raise InvalidRequest("PUNA_NODE_ID may have letters, digits, dots, dashes and underscores, at most 63")
        return chosen

    def _check_free(self, node_id: str, registered: Collection[str]) -> None:
        valid = [facts.valid_to_unix_s for facts in self._certificates_of(node_id)]
        if node_id in registered or max(valid, default=0.0) > self._wall_unix_s():
            raise PermissionDenied(f"there is a node {node_id} already; set another PUNA_NODE_ID on this machine")

    def _certificates_of(self, node_id: str) -> list[Facts]:
        name = RoleName(Role.NODE, node_id)
        known = (*self.joined(), *self.authority.issued())
        return [one for one in known if one.name == name and not self._refuses(one)]

    def _keep(self, name: RoleName, certificate: bytes) -> None:
        path = self._path(name.id)
        write_private(path.parent, {path.name: certificate})

    def _path(self, node_id: str) -> Path:
        return self.authority.directory / _DIRECTORY / (node_id + _SUFFIX)


def _key_of(request: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return read_request(request)
    except BadCertificate as error:
        raise InvalidRequest(str(error)) from error


def _read(path: Path) -> Facts:
    try:
        return read_facts(read_trusted(path))
    except (OSError, BadCertificate) as error:
        raise StartupError(f"{path}: {error}") from error

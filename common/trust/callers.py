"""TLS of the cluster's servers, and the callers that their certificates name."""

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from common.errors import PermissionDenied, Unauthenticated
from common.trust.access import check_access
from common.trust.certificates import BadCertificate, Facts, read_facts
from common.trust.identity import IdentitySource, Material
from common.trust.roles import Role, RoleName

if TYPE_CHECKING:  # generic in the stubs only
    ServicerContext = aio.ServicerContext[Any, Any]
else:
    ServicerContext = aio.ServicerContext

_CERTIFICATE_KEY = "x509_pem_cert"


def server_credentials(identity: IdentitySource, *, asks_callers: bool = True) -> grpc.ServerCredentials:
    """Build credentials that ask callers for a certificate; new connections get the newest one of ours."""
    shown = identity.material()

    def next_configuration() -> grpc.ServerCertificateConfiguration | None:
        """Return the configuration for the next handshake, in a thread of gRPC's. None: as before."""
        nonlocal shown
        newest = identity.material()
        if newest is shown:
            return None
        shown = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        next_configuration,  # type: ignore[arg-type]  # the stubs do not know that it may answer None
        require_client_authentication=asks_callers,
    )


def check_caller(context: ServicerContext, method: str, identity: IdentitySource) -> Facts:
    """Let a call pass; return the certificate of the caller.

    Raises:
        Unauthenticated: the certificate names no role, or expired since the connection was opened.
        PermissionDenied: its role may not call this method.
    """
    facts = facts_of(context)
    if facts is None:
        raise Unauthenticated("a certificate of the cluster is needed")
    if time.time() > facts.valid_to_unix_s:
        raise Unauthenticated(f"the certificate of {facts.name} expired after this connection was opened")
    check_access(method, facts.name, own=identity.material().facts.name)
    return facts


def check_node(context: ServicerContext, node_id: str) -> None:
    """Check that a caller speaks for a node. On listeners without certificates every caller may.

    Raises:
        PermissionDenied: it is another node.
    """
    facts = facts_of(context)
    if facts is not None and facts.name != RoleName(Role.NODE, node_id):
        raise PermissionDenied(f"{facts.name} may not register node {node_id!r}")


def facts_of(context: ServicerContext) -> Facts | None:
    """Return the content of the caller's certificate; None on listeners without certificates.

    Raises:
        Unauthenticated: it names no role.
    """
    shown = context.auth_context().get(_CERTIFICATE_KEY)
    return _read(next(iter(shown))) if shown else None


@lru_cache(maxsize=1024)
def _read(certificate: bytes) -> Facts:
    try:
        return read_facts(certificate)
    except BadCertificate as error:
        raise Unauthenticated(str(error)) from error


def _configuration(material: Material) -> grpc.ServerCertificateConfiguration:
    pair = material.pair
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], material.authorities)

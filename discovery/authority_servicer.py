"""puna.v1.Authority over gRPC: machines join with a token, and nodes renew their certificates."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from grpc import aio

from common.audit.acts import AuditClosedError
from common.clock import MS_PER_S, Clock
from common.errors import AuditUnavailable, InternalError, PunaError, RateLimited, Unauthenticated
from common.network import peer_address
from common.rate_limits import Bucket, FailedAttempts
from common.startup_error import StartupError
from common.telemetry.logs import get_logger
from common.trust.admission import Admission, Application
from common.trust.callers import facts_of
from common.trust.certificates import by_fingerprint, when
from discovery import metrics
from discovery.registry import NodeRegistry
from protos import authority_pb2, authority_pb2_grpc

log = get_logger()

# Of all machines; an address that shows bad tokens has a limit of its own.
ATTEMPTS_PER_MINUTE = 600

Result = TypeVar("Result")


class AuthorityServicer(authority_pb2_grpc.AuthorityServicer):
    """Served twice: to nodes with certificates, and to machines that have none yet."""

    def __init__(self, admission: Admission, registry: NodeRegistry, clock: Clock) -> None:
        self._admission = admission
        self._registry = registry
        self._clock = clock
        self._failed = FailedAttempts()
        self._all = Bucket(ATTEMPTS_PER_MINUTE)

    async def GetAuthorities(
        self, request: authority_pb2.GetAuthoritiesRequest, context: aio.ServicerContext[Any, Any]
    ) -> authority_pb2.Authorities:
        """Return what everyone may know."""
        authorities = await _with_files(self._admission.authority.authorities)
        if request.fingerprint and request.fingerprint not in by_fingerprint(authorities):
            error = Unauthenticated("its token or certificate is of another cluster, or its authority was replaced")
            self._refuse(error, context)
        if request.clock_unix_ms:
            self._refuse(self._clock_error(request.clock_unix_ms), context)
        return authority_pb2.Authorities(authorities=authorities)

    async def Join(
        self, request: authority_pb2.JoinRequest, context: aio.ServicerContext[Any, Any]
    ) -> authority_pb2.IssuedCertificate:
        """Let a machine in."""
        application = Application(
            token_id=request.token_id,
            secret=request.secret,
            request=request.request,
            node_id=request.node_id,
            address=peer_address(context.peer()),
        )
        try:
            self._count()
            registered = self._registry.membership.nodes
            name, certificate = await _with_files(lambda: self._admission.admit(application, registered=registered))
        except PunaError as error:
            raise self._refuse(error, context) from error
        metrics.JOINS.labels(result="admitted").inc()
        log.info("join.admitted", address=application.address, node=name.id)
        return await self._issued(certificate)

    async def Renew(
        self, request: authority_pb2.RenewRequest, context: aio.ServicerContext[Any, Any]
    ) -> authority_pb2.IssuedCertificate:
        """Issue the next certificate of the caller."""
        before = facts_of(context)
        if before is None:
            raise Unauthenticated("the certificate of a node is needed")
        address = peer_address(context.peer())
        certificate = await _with_files(lambda: self._admission.renew(before, request.request, address=address))
        log.info("certificate.renewed", name=str(before.name), address=address)
        return await self._issued(certificate)

    def _count(self) -> None:
        """Count an attempt.

        Raises:
            RateLimited: there were too many, of all machines together.
        """
        now_s = self._clock.now_s()
        if (wait_s := self._all.wait_s(1, now_s)) > 0:
            raise RateLimited(f"too many attempts to join; try again in {wait_s:.0f} s", retry_after_s=wait_s)
        self._all.take(1, now_s)

    def _clock_error(self, claimed_ms: int) -> Unauthenticated:
        """Return the error of a machine whose clock is outside the dates of the certificate shown to it."""
        own_s = self._clock.wall_unix_s()
        behind_s = own_s - claimed_ms / MS_PER_S
        side = "behind" if behind_s > 0 else "ahead of"
        return Unauthenticated(
            f"its clock is {abs(behind_s):.0f} s {side} that of this machine, {when(own_s)}; set the one that is wrong"
        )

    def _refuse(self, error: PunaError, context: aio.ServicerContext[Any, Any]) -> PunaError:
        """Count a failure of an address, and return the error for it. The log has those before a limit."""
        address = peer_address(context.peer())
        metrics.JOINS.labels(result="refused").inc()
        if isinstance(error, Unauthenticated):
            answer: PunaError = self._failed.refusal(error, address, self._clock.now_s())
        else:
            answer = error
        if not isinstance(answer, RateLimited):
            log.warning("join.refused", address=address, text=error.message)
        return answer

    async def _issued(self, certificate: bytes) -> authority_pb2.IssuedCertificate:
        authorities = await _with_files(self._admission.authority.authorities)
        return authority_pb2.IssuedCertificate(certificate=certificate, authorities=authorities)


async def _with_files(work: Callable[[], Result]) -> Result:
    """Run what reads and writes files of the authority in a thread.

    Raises:
        AuditUnavailable: the line of an act cannot be written.
        InternalError: they cannot be used.
    """
    try:
        return await asyncio.to_thread(work)
    except AuditClosedError as error:
        log.error("audit.failed", text=str(error))
        raise AuditUnavailable("the audit log of discovery cannot be written: nothing was changed") from error
    except StartupError as error:
        log.error("authority.unusable", text=str(error))  # the text has all of it
        raise InternalError("the authority of the cluster cannot be used; see the log of discovery") from error

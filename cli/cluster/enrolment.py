"""A machine that joins: how it gets the certificate of its node, and keeps it. Its key never leaves it."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import grpc
from grpc import aio

from cli.cluster.clock_notice import report_clock
from cli.errors import CommandFailed, ExitCode
from common.errors import ModelUnavailable, PunaError, RequestTimeout
from common.grpc.client import CHANNEL_OPTIONS, ask, open_channel
from common.network import join_host_port, split_host_port
from common.startup_error import StartupError
from common.trust.authority import write_private
from common.trust.certificates import BadCertificate, KeyPair, by_fingerprint, check_pair, issuer_of, read_facts, when
from common.trust.identity import AUTHORITIES, CERTIFICATE, KEY, read_trusted
from common.trust.requests import make_request
from common.trust.roles import Role, RoleName, host_name_of
from common.trust.tokens import Token
from protos import authority_pb2, authority_pb2_grpc

# The port for machines without a certificate lies so far behind discovery's own.
JOIN_PORT_OFFSET = 4
_ANSWERS_WITHIN_S = 10.0
_CALL_WITHIN_S = 5.0
_TRIES_MAX = 3
_RETRY_INTERVAL_S = 0.1
_LOOK_INTERVAL_S = 20.0
_ANOTHER = "`puna tokens create` there prints another"

Answer = TypeVar("Answer")


def join_address(discovery: str) -> str:
    """Return the address at which the cluster of a discovery lets machines in."""
    host, port = split_host_port(discovery)
    return join_host_port(host, port + JOIN_PORT_OFFSET)


async def join_cluster(discovery: str, token: Token, trust: Path, *, node_id: str) -> Path:
    """Get a certificate for a token, and write it below `trust`; return its directory. `node_id`: empty for any.

    The authority is known by the token's fingerprint before anything secret is sent.

    Raises:
        CommandFailed: this machine is not let in; nothing was written.
        StartupError: the files cannot be written.
    """
    address = join_address(discovery)
    shown = await _shown_certificate(address)
    await _check_clock(address, shown, listener=address)
    authority = await _pinned_authority(address, shown, token)
    request = make_request()
    wanted = authority_pb2.JoinRequest(
        token_id=token.id, secret=token.secret, request=request.certificate, node_id=node_id
    )
    issued = await _ask(address, authority, lambda stub: ask(stub.Join, wanted, timeout_s=_CALL_WITHIN_S))
    return trust / str(_write(trust, KeyPair(issued.certificate, request.key), issued.authorities))


async def explain_silence(discovery: str, directory: Path) -> str:
    """Say why a discovery does not answer to the certificate of a directory; empty: nothing is there."""
    try:
        own = read_trusted(directory / AUTHORITIES)
        shown = await _shown_certificate(discovery)
        await _check_clock(discovery, shown, listener=join_address(discovery))
        if issuer_of(shown, own) is not None:
            return f"{discovery} refuses the certificate in {directory}; join again with a token: {_ANOTHER}"
        with suppress(CommandFailed):  # so that its log has it, too
            address = join_address(discovery)
            await _authorities(address, await _shown_certificate(address), next(iter(by_fingerprint(own))))
        return f"{discovery} is of another cluster than the certificate in {directory}; {_ANOTHER} for --token"
    except (OSError, BadCertificate):
        return ""
    except CommandFailed as error:
        return "" if error.code is ExitCode.UNREACHABLE else str(error)


async def keep_certificate(discovery: str, directory: Path, warn: Callable[[str], None]) -> None:
    """Renew the certificate of this machine at half of its life, and take new authorities; runs for ever.

    Running connections keep the certificate that they have. A failure is tried again, and said once it matters.
    """
    while True:
        try:
            await _renew(discovery, directory)
        except (PunaError, StartupError, BadCertificate, OSError) as error:
            _warn_if_late(directory, error, warn)
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _renew(discovery: str, directory: Path) -> None:
    """Do what is due.

    Raises:
        PunaError: the discovery does not answer, or refuses.
        BadCertificate, StartupError, OSError: files or the answer cannot be used.
    """
    async with open_channel(discovery, Role.DISCOVERY) as channel:
        stub = authority_pb2_grpc.AuthorityStub(channel)
        own = authority_pb2.GetAuthoritiesRequest()
        authorities = (await ask(stub.GetAuthorities, own, timeout_s=_CALL_WITHIN_S)).authorities
        certificate = read_trusted(directory / CERTIFICATE)
        is_ours = issuer_of(certificate, authorities) is not None
        if is_ours and authorities != read_trusted(directory / AUTHORITIES):
            write_private(directory, {AUTHORITIES: authorities})
        if time.time() < read_facts(certificate).renew_at_unix_s:
            return
        request = make_request()
        wanted = authority_pb2.RenewRequest(request=request.certificate)
        issued = await ask(stub.Renew, wanted, timeout_s=_CALL_WITHIN_S)
        _write(directory.parents[1], KeyPair(issued.certificate, request.key), issued.authorities)


def _write(trust: Path, pair: KeyPair, authorities: bytes) -> RoleName:
    """Write a certificate below `trust`, if it can be used.

    Raises:
        StartupError: it cannot.
    """
    try:
        name = check_pair(pair, authorities, now_unix_s=time.time()).name
    except BadCertificate as error:
        raise StartupError(f"the cluster answered with a certificate that cannot be used: {error}") from error
    write_private(trust / str(name), {AUTHORITIES: authorities, KEY: pair.key, CERTIFICATE: pair.certificate})
    return name


def _warn_if_late(directory: Path, error: Exception, warn: Callable[[str], None]) -> None:
    with suppress(OSError, BadCertificate):
        facts = read_facts(read_trusted(directory / CERTIFICATE))
        if facts.is_late(time.time()):
            warn(f"the certificate of this machine ends at {when(facts.valid_to_unix_s)}, and is not renewed: {error}")


async def _pinned_authority(address: str, shown: bytes, token: Token) -> bytes:
    """Return the authority of the token, if the certificate shown at the address is of it.

    Raises:
        CommandFailed: it is not.
    """
    known = await _authorities(address, shown, token.fingerprint)
    found = known.get(token.fingerprint)
    if found is None or issuer_of(shown, found) is None:
        raise CommandFailed(f"the token is not for the cluster at {address}, or its authority was replaced; {_ANOTHER}")
    return found


async def _authorities(address: str, shown: bytes, expected: str) -> dict[str, bytes]:
    """Return what a cluster that is not known yet says, by fingerprint; `shown`: the certificate that it showed."""
    request = authority_pb2.GetAuthoritiesRequest(fingerprint=expected)
    answer = await _ask(address, shown, lambda stub: ask(stub.GetAuthorities, request, timeout_s=_CALL_WITHIN_S))
    try:
        return by_fingerprint(answer.authorities)
    except BadCertificate as error:
        raise CommandFailed(f"{address}: {error}") from error


async def _ask(
    address: str, authorities: bytes, call: "Callable[[authority_pb2_grpc.AuthorityAsyncStub], Awaitable[Answer]]"
) -> Answer:
    """Return the answer of a discovery whose certificate is one of these, or of one of these.

    Raises:
        CommandFailed: it refuses, or there is none.
    """
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", host_name_of(Role.DISCOVERY))]
    credentials = grpc.ssl_channel_credentials(authorities)
    async with aio.secure_channel(address, credentials, options=options) as channel:
        for _ in range(_TRIES_MAX):
            try:
                return await call(authority_pb2_grpc.AuthorityStub(channel))
            except (ModelUnavailable, RequestTimeout) as error:  # as errors of the transport are read
                failure = error
            except PunaError as error:
                raise CommandFailed(f"{address} refuses: {error.message}", ExitCode.REFUSED) from error
    raise CommandFailed(f"{address}: {failure.message}", ExitCode.UNREACHABLE)


async def _shown_certificate(address: str) -> bytes:
    """Return the certificate that a listener shows, of any authority; nothing is sent.

    Raises:
        CommandFailed: none is shown.
    """
    host, port = split_host_port(address)
    failure: OSError | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(_ANSWERS_WITHIN_S):
            while True:
                try:
                    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, port), timeout=_CALL_WITHIN_S)
                    return pem.encode()
                except OSError as error:
                    failure = error
                await asyncio.sleep(_RETRY_INTERVAL_S)
    if isinstance(failure, ssl.SSLError):
        raise CommandFailed(f"{address} does not speak TLS; the machine there has another version or no authority")
    text = f"nothing answers at {address}; start the cluster there with `puna up --address {host}`"
    raise CommandFailed(text, ExitCode.UNREACHABLE)


async def _check_clock(address: str, shown: bytes, *, listener: str) -> None:
    """Compare the dates of another machine's certificate with the clock of this one; its `listener` hears the result.

    Raises:
        CommandFailed: one of both clocks is wrong.
    """
    now_unix_s = time.time()
    try:
        facts = read_facts(shown)
    except BadCertificate as error:
        raise CommandFailed(f"{address} is no discovery of Puna: {error}") from error
    if not facts.valid_from_unix_s <= now_unix_s <= facts.valid_to_unix_s:
        await report_clock(listener, now_unix_s=now_unix_s)
        raise CommandFailed(
            f"the certificate of {address} is good from {when(facts.valid_from_unix_s)} to "
            f"{when(facts.valid_to_unix_s)}, and the clock of this machine says {when(now_unix_s)}; set the clock"
        )
